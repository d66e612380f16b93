"""`sublayers convert`: turn other implementations' checkpoints into our models, in any order."""

import json
import sys
from dataclasses import MISSING, dataclass
from pathlib import Path

from sublayers.configuration.order import Order
from sublayers.hub.sources import check_source
from sublayers.training.flags import flag, parse_flags, positive
from sublayers.training.folders import refuse_to_overwrite, refuse_to_replace, whole_folder

USAGE = "sublayers convert SOURCE DESTINATION [--name value ...]"
# the endings of checkpoints that are files
FILES = (".bin", ".ckpt", ".pt", ".pth", ".safetensors")
OWN_ORDER = "default: the source's own; a model in another order needs training: sublayers"


@dataclass
class ConvertArguments:
    """Flags of `sublayers convert`."""

    source: str = flag(
        "a transformers folder or repository on the Hub (GPT-2, Llama, Mistral, Qwen2, Qwen3, Gemma, Gemma 2, Gemma 3 "
        "text, StableLM, Mixtral, OLMoE, Qwen2-MoE, Qwen3-MoE, Qwen3-Next, LFM2, Nemotron-H, Bamba, "
        "granite-moe-hybrid, BERT, RoBERTa, XLM-RoBERTa, CamemBERT, DistilBERT, ELECTRA, MPNet, ModernBERT, EuroBERT, "
        "NomicBERT, GTE, Jina embeddings v3, BART, mBART, Marian, Pegasus, transfo-xl), "
        "or a file (.pt, .safetensors) of fairseq (language model, Transformer, Macaron, Macaron BERT, LightConv, "
        "IOT), of Transformer-XL (its authors' model.pt saved by torch 1.6 or newer, NVIDIA's checkpoints, state "
        "dicts), or of adaptive span and the Sandwich authors' character model",
        MISSING,
        positional=True,
    )
    destination: Path = flag("a new folder", MISSING, positional=True)
    sublayer_order: str | None = flag(
        f"{OWN_ORDER} pretrain --model_name_or_path DESTINATION (with --objective mlm if BERT-like). Only BERT-like "
        "models may have orders of another length: missing sublayers are dropped, additional ones get random weights"
    )
    encoder_sublayer_order: str | None = flag(
        f"order of an encoder-decoder's encoder; {OWN_ORDER} seq2seq --model_name_or_path DESTINATION"
    )
    decoder_sublayer_order: str | None = flag(
        f"order of an encoder-decoder's decoder; {OWN_ORDER} seq2seq --model_name_or_path DESTINATION"
    )
    num_attention_heads: int | None = flag("needed if a fairseq file does not name it", type=positive)
    verify: bool = flag(
        "run the source in transformers and the new folder on random tokens, with padding on the right, on the left "
        "and in between, and keep the folder only if the outputs agree",
        False,
    )
    report: Path | None = flag("a new .json file: where every tensor of the source went, and how")


def main(argv: list[str]) -> None:
    """Convert a checkpoint into a new folder, which is written as a whole or not at all.

    Raises:
        FileExistsError: the folder holds files, or the report exists.
        FileNotFoundError: there is no such source, neither here nor on the Hub.
        ValueError: bad flags, a checkpoint that this model has no place for or that would run code, a fairseq file
            without its number of heads, a source that cannot be run to verify, or outputs that are not the source's.
    """
    [arguments] = parse_flags(argv, [ConvertArguments], USAGE, description=__doc__)
    destination = arguments.destination
    orders = {name: order for name, order in vars(arguments).items() if name.endswith("sublayer_order") and order}
    refuse_to_overwrite(destination)
    refuse_to_replace(arguments.report)
    if arguments.source.endswith(FILES) and not Path(arguments.source).exists():
        raise FileNotFoundError(f"there is no file {arguments.source}; give another, a folder, or a name on the Hub")
    check_source(arguments.source)
    if arguments.verify and orders:
        raise ValueError("--verify compares with the source, which runs only in its own order; leave the orders out")
    for order in orders.values():
        Order(order)
    # these imports take seconds, for which --help and simple mistakes do not wait
    from sublayers.convert.sources import can_run, convert, take_tokenizer
    from sublayers.convert.verify import compare
    from sublayers.hub.folder import write_folder
    from sublayers.hub.loading import download, refuse_ways_out
    from sublayers.training.trainers.publish import all_arguments, record

    source = download(arguments.source)
    refuse_ways_out(source)
    if destination.resolve().is_relative_to(source.resolve()):
        raise ValueError(f"{destination} lies in the source {source}; choose a folder outside of it")
    if arguments.verify and not can_run(source):
        raise ValueError(
            f"--verify cannot run {source}: nothing that works with this Python runs its original; leave it out, every "
            "number that is copied is compared in any case"
        )
    model, report, original = convert(source, orders, arguments.num_attention_heads)
    with whole_folder(destination) as folder:
        take_tokenizer(source, folder, model.config)
        # the card tells where the weights are from
        remarks = report.summary().splitlines()
        run = record(["convert", *argv], all_arguments(arguments), arguments.source, remarks=remarks)
        write_folder(folder, model, run=run, source=source if (source / "config.json").exists() else None)
        if arguments.verify and original is not None:
            difference = compare(type(model).from_pretrained(folder), original)
            print(f"verified: the outputs differ by at most {difference:.1e} of their size")
    if arguments.report:
        text = json.dumps({"source": arguments.source, "destination": str(destination)} | report._asdict(), indent=2)
        arguments.report.write_text(text + "\n", encoding="utf-8")
    print(report.summary())
    final = {name: getattr(model.config, name) for name in model.config.orders}
    described = ", ".join(
        f"{name.replace('_', ' ')} {' '.join(order) if isinstance(order, list) else order}"
        for name, order in final.items()
    )
    print(f"{destination}: {model.num_parameters():,} parameters, {described}")
    if warning := report.warning():
        print(f"warning: {destination} {warning}; train it before use, as --help says", file=sys.stderr)

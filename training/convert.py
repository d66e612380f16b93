"""`sublayers convert`: other implementations' checkpoints as ours, in their own or any other order."""

import argparse
from pathlib import Path

import transformers
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer, GPT2LMHeadModel, PreTrainedModel

from sublayers.configuration.sublayer_order import expand
from sublayers.training.checkpoint import agreed, load_fairseq
from sublayers.training.cli import refuse_to_overwrite
from sublayers.training.convert_bert import from_bert, from_macaron_bert
from sublayers.training.convert_iot import PREDICTOR, from_fairseq_iot
from sublayers.training.convert_lightconv import from_fairseq_lightconv
from sublayers.training.convert_lm import from_fairseq_lm, from_gpt2
from sublayers.training.convert_seq2seq import from_bart, from_fairseq_seq2seq

# by whether the source is an encoder-decoder
ORDERS = {False: ["sublayer_order"], True: ["encoder_sublayer_order", "decoder_sublayer_order"]}


def refuse_other_orders(orders: dict[str, str], known: list[str]) -> None:
    """Check that only orders of stacks that the source has are given.

    Raises:
        ValueError: another one is.
    """
    if foreign := sorted(f"--{name.replace('_', '-')}" for name in orders.keys() - set(known)):
        taken = " and ".join(f"--{name.replace('_', '-')}" for name in known) or "no order but its own"
        raise ValueError(f"leave out {' and '.join(foreign)}; this source takes {taken}")


def from_folder(source: Path, orders: dict[str, str]) -> PreTrainedModel:
    """Convert a transformers folder, and say what could not be taken over.

    Raises:
        ValueError: a model that is none of GPT-2, BERT, BART and Marian, or an order of a stack that it lacks.
    """
    config = AutoConfig.from_pretrained(source)
    if config.model_type not in ("gpt2", "bert", "bart", "marian"):
        raise ValueError(f"{source} holds {config.model_type!r}; GPT-2, BERT, BART and Marian can be converted")
    refuse_other_orders(orders, ORDERS[config.is_encoder_decoder])
    if config.model_type == "gpt2":
        return from_gpt2(GPT2LMHeadModel.from_pretrained(source), **orders)
    if config.model_type in ("bart", "marian"):
        return from_bart(AutoModelForSeq2SeqLM.from_pretrained(source), **orders)
    model_class = getattr(transformers, (config.architectures or ["BertModel"])[0])
    model, coverage = from_bert(model_class.from_pretrained(source), **orders)
    letters = expand(model.config.sublayer_order)
    if coverage.new:
        print("new, with random weights:", ", ".join(f"layers.{i} ({letters[i]})" for i in coverage.new))
    for letter, number in coverage.unused.items():
        if number:
            print(f"not taken over: the last {number} {letter} of the source")
    return model


def from_fairseq_file(source: Path, num_attention_heads: int | None, orders: dict[str, str]) -> PreTrainedModel:
    """Convert a fairseq checkpoint, or the safetensors of its weights.

    Raises:
        ValueError: what is not in the file is not given either, or an order of a stack that it lacks is.
    """
    weights, options = (load_file(source), {}) if source.suffix == ".safetensors" else load_fairseq(source)
    # read in any case: heads that differ cannot be converted
    told = agreed(options, "attention_heads")
    heads = num_attention_heads or told
    if heads is None:
        raise ValueError(f"{source} does not tell its number of heads; pass --num-attention-heads")
    if "encoder.embed_segment.weight" in weights:
        refuse_other_orders(orders, [])
        return from_macaron_bert(weights, heads)
    if PREDICTOR in weights:
        refuse_other_orders(orders, [])
        return from_fairseq_iot(weights, heads, options=options)
    is_encoder_decoder = "encoder.embed_tokens.weight" in weights
    refuse_other_orders(orders, ORDERS[is_encoder_decoder])
    if "encoder.layers.0.linear1.weight" in weights:
        return from_fairseq_lightconv(weights, heads, options=options, **orders)
    if is_encoder_decoder:
        return from_fairseq_seq2seq(weights, heads, options=options, **orders)
    return from_fairseq_lm(weights, heads, sublayer_order=orders.get("sublayer_order"))


def main(argv: list[str] | None = None) -> None:
    """Convert a checkpoint into a new folder.

    Raises:
        FileExistsError: the folder holds files.
        ValueError: a checkpoint that this model has no place for, or a fairseq file without its number of heads.
    """
    parser = argparse.ArgumentParser(prog="sublayers convert", description=__doc__)
    source_help = "a transformers folder (GPT-2, BERT, BART, Marian) or a fairseq file (.pt, .safetensors: language "
    source_help += "model, Transformer, Macaron, Macaron BERT, LightConv, IOT)"
    parser.add_argument("source", type=Path, help=source_help)
    parser.add_argument("destination", type=Path, help="a new folder")
    parser.add_argument("--sublayer-order", "--sublayer_order", help="default: the source's own")
    for side in ("encoder", "decoder"):
        order_help = f"of an encoder-decoder's {side}; default: the source's own"
        parser.add_argument(f"--{side}-sublayer-order", f"--{side}_sublayer_order", help=order_help)
    heads_help = "needed where a fairseq file does not tell"
    parser.add_argument("--num-attention-heads", "--num_attention_heads", type=int, help=heads_help)
    arguments = parser.parse_args(argv)
    refuse_to_overwrite(arguments.destination)
    names = ORDERS[False] + ORDERS[True]
    orders = {name: order for name, order in vars(arguments).items() if name in names and order}
    if arguments.source.is_dir():
        model = from_folder(arguments.source, orders)
    else:
        model = from_fairseq_file(arguments.source, arguments.num_attention_heads, orders)
    model.save_pretrained(arguments.destination)
    if (arguments.source / "tokenizer_config.json").exists():
        AutoTokenizer.from_pretrained(arguments.source).save_pretrained(arguments.destination)
    found = {name.replace("_", " "): getattr(model.config, name) for name in model.config.orders}
    described = ", ".join(
        f"{name} {' '.join(order) if isinstance(order, list) else order}" for name, order in found.items()
    )
    print(f"{arguments.destination}: {model.num_parameters():,} parameters, {described}")

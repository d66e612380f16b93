"""`sublayers convert`: other implementations' checkpoints as ours, in their own or any other order."""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import (
    BartForConditionalGeneration,
    BertPreTrainedModel,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    MarianMTModel,
    PreTrainedConfig,
    PreTrainedModel,
)

from sublayers.hub.loading import load, refuse_ways_out
from sublayers.hub.model_card import RUN
from sublayers.hub.self_contained import copy_tokenizer
from sublayers.training.convert.bert import from_bert, from_macaron_bert
from sublayers.training.convert.convolutions import from_fairseq_lightconv
from sublayers.training.convert.iot import PREDICTOR, from_fairseq_iot
from sublayers.training.convert.language_models import from_fairseq_lm, from_gpt2
from sublayers.training.convert.seq2seq import from_bart, from_fairseq_seq2seq
from sublayers.training.convert.verify import account, compare
from sublayers.training.convert.weights import (
    Weights,
    agreed,
    load_fairseq,
    record_copies,
)
from sublayers.training.flags import positive
from sublayers.training.folders import refuse_to_overwrite, whole_folder
from sublayers.training.trainers.publish import without_tokens

# by whether the source is an encoder-decoder
ORDERS = {False: ["sublayer_order"], True: ["encoder_sublayer_order", "decoder_sublayer_order"]}
# by the class that a folder names, as what it is loaded: a body by itself gets the head that is tied to its embeddings
CLASSES: dict[str, dict[str, Any]] = {
    "gpt2": {
        "GPT2Model": GPT2LMHeadModel,
        "GPT2LMHeadModel": GPT2LMHeadModel,
        "GPT2ForSequenceClassification": GPT2ForSequenceClassification,
    },
    "bart": {"BartModel": BartForConditionalGeneration, "BartForConditionalGeneration": BartForConditionalGeneration},
    "marian": {"MarianModel": MarianMTModel, "MarianMTModel": MarianMTModel},
}
# by one of these, a folder has a tokenizer
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json")


def refuse_other_orders(orders: dict[str, str], known: list[str]) -> None:
    """Check that only orders of stacks that the source has are given.

    Raises:
        ValueError: another one is.
    """
    if foreign := sorted(f"--{name.replace('_', '-')}" for name in orders.keys() - set(known)):
        taken = " and ".join(f"--{name.replace('_', '-')}" for name in known) or "no order but its own"
        raise ValueError(f"leave out {' and '.join(foreign)}; this source takes {taken}")


def load_transformers(source: Path) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Load a model from a folder of transformers, and say what was missing or unexpected there.

    Raises:
        FileNotFoundError: there is no config.json.
        ValueError: a model that is none of GPT-2, BERT, BART and Marian, a head that none here has, an adapter, or a
            file that would run code.
    """
    if not (source / "config.json").exists():
        raise FileNotFoundError(f"{source} has no config.json; is it a folder that transformers saved?")
    config, _ = PreTrainedConfig.get_config_dict(source)
    model_type = config.get("model_type")
    if model_type not in (*CLASSES, "bert"):
        raise ValueError(f"{source} holds {model_type!r}; GPT-2, BERT, BART and Marian can be converted")
    classes = CLASSES.get(model_type, {})
    (name, *_) = config.get("architectures") or [*classes, "BertModel"]
    model_class: Any = classes.get(name)
    if model_type == "bert":
        model_class = getattr(transformers, name, None)
        if not isinstance(model_class, type) or not issubclass(model_class, BertPreTrainedModel):
            raise ValueError(f"{source} holds {name!r}, which is no BERT of transformers")
    elif model_class is None:
        raise ValueError(f"{source} holds {name!r}, which none here is like; {', '.join(classes)} can be converted")
    return load(model_class, source, dtype=torch.float32, output_loading_info=True)


def from_transformers(source: Any, orders: dict[str, str]) -> PreTrainedModel:
    """Convert a model of transformers.

    Raises:
        ValueError: an order of a stack that it lacks, or what its conversion refuses.
    """
    refuse_other_orders(orders, ORDERS[source.config.is_encoder_decoder])
    if isinstance(source, BertPreTrainedModel):
        return from_bert(source, **orders)[0]
    if isinstance(source, GPT2LMHeadModel | GPT2ForSequenceClassification):
        return from_gpt2(source, **orders)
    return from_bart(source, **orders)


def from_fairseq(
    weights: Weights, options: Mapping[str, Any], num_attention_heads: int | None, orders: dict[str, str]
) -> PreTrainedModel:
    """Convert the weights of a fairseq checkpoint, with the options that it tells.

    Raises:
        ValueError: what is not in the file is not given either, or an order of a stack that it lacks is.
    """
    # read in any case: heads that differ cannot be converted
    told = agreed(options, "attention_heads")
    heads = num_attention_heads or told
    if heads is None:
        raise ValueError("the file does not tell its number of heads; pass --num-attention-heads")
    if "encoder.embed_segment.weight" in weights:
        refuse_other_orders(orders, [])
        return from_macaron_bert(weights, heads, options=options)
    if PREDICTOR in weights:
        refuse_other_orders(orders, [])
        return from_fairseq_iot(weights, heads, options=options)
    is_encoder_decoder = "encoder.embed_tokens.weight" in weights
    refuse_other_orders(orders, ORDERS[is_encoder_decoder])
    if "encoder.layers.0.linear1.weight" in weights:
        return from_fairseq_lightconv(weights, heads, options=options, **orders)
    if is_encoder_decoder:
        return from_fairseq_seq2seq(weights, heads, options=options, **orders)
    return from_fairseq_lm(weights, heads, sublayer_order=orders.get("sublayer_order"), options=options)


def take_tokenizer(source: Path, destination: Path) -> None:
    """Save a folder's tokenizer, if it has one, so that it loads beside any model.

    Raises:
        ValueError: it cannot be loaded.
    """
    if any((source / name).exists() for name in TOKENIZER_FILES):
        try:
            copy_tokenizer(source, destination)
        except (ImportError, ValueError) as error:
            raise ValueError(
                f"the tokenizer in {source} cannot be loaded; it has code of its own, or needs a package such as "
                "sentencepiece, or can be left out by moving its files away"
            ) from error


def main(argv: list[str] | None = None) -> None:
    """Convert a checkpoint into a new folder, which is written as a whole or not at all.

    Raises:
        FileExistsError: the folder holds files, or the report exists.
        FileNotFoundError: there is no such source.
        ValueError: a checkpoint that this model has no place for or that would run code, a fairseq file without its
            number of heads, or outputs that are not the source's.
    """
    parser = argparse.ArgumentParser(prog="sublayers convert", description=__doc__)
    source_help = "a transformers folder (GPT-2, BERT, BART, Marian) or a fairseq file (.pt, .safetensors: language "
    source_help += "model, Transformer, Macaron, Macaron BERT, LightConv, IOT)"
    parser.add_argument("source", type=Path, help=source_help)
    parser.add_argument("destination", type=Path, help="a new folder")
    order_help = "default: the source's own; train another one before use: sublayers pretrain --model_name_or_path "
    order_help += "DESTINATION, a BERT with --objective mlm. Only a BERT's may be of another length: sublayers that it "
    order_help += "lacks are dropped, and those that it has in addition get random weights"
    parser.add_argument("--sublayer-order", "--sublayer_order", help=order_help)
    for side in ("encoder", "decoder"):
        order_help = f"of an encoder-decoder's {side}; default: the source's own; train another one before use: "
        order_help += "sublayers seq2seq --model_name_or_path DESTINATION"
        parser.add_argument(f"--{side}-sublayer-order", f"--{side}_sublayer_order", help=order_help)
    heads_help = "needed where a fairseq file does not tell"
    parser.add_argument("--num-attention-heads", "--num_attention_heads", type=positive, help=heads_help)
    verify_help = "run a transformers source and the new folder on random tokens, the latter with padding on the "
    verify_help += "right, on the left and in between, and keep it only if they agree"
    parser.add_argument("--verify", action="store_true", help=verify_help)
    parser.add_argument("--report", type=Path, help="a new .json file: where every tensor of the source went, and how")
    arguments = parser.parse_args(argv)
    source, destination = arguments.source, arguments.destination
    names = ORDERS[False] + ORDERS[True]
    orders = {name: order for name, order in vars(arguments).items() if name in names and order}
    refuse_to_overwrite(destination)
    if not source.exists():
        raise FileNotFoundError(f"{source} is neither a folder nor a file; download it first")
    refuse_ways_out(source)
    if destination.resolve().is_relative_to(source.resolve()):
        raise ValueError(f"{destination} lies in the source {source}; choose a folder outside of it")
    if arguments.report and arguments.report.exists():
        raise FileExistsError(f"{arguments.report} exists; choose another file for the report")
    if arguments.verify and orders:
        raise ValueError("--verify compares with the source, which runs only in its own order; leave the orders out")
    if arguments.verify and source.is_file():
        raise ValueError(
            f"--verify cannot run {source}: fairseq does not work with this Python; leave it out, every number that is "
            "copied is compared in any case"
        )
    original: PreTrainedModel | None = None
    found: dict[str, Any] = {"missing_keys": (), "unexpected_keys": ()}
    with record_copies() as copied:
        if source.is_dir():
            original, found = load_transformers(source)
            weights, model = original.state_dict(), from_transformers(original, orders)
        else:
            weights, options = load_fairseq(source)
            model = from_fairseq(weights, options, arguments.num_attention_heads, orders)
    report = account(weights, copied, model, found["missing_keys"])
    unexpected = f"unknown to {type(original).__name__}"
    report.left_out.update(dict.fromkeys(sorted(found["unexpected_keys"]), unexpected))
    with whole_folder(destination) as folder:
        model.save_pretrained(folder)
        take_tokenizer(source, folder)
        # for the card: these weights are somebody's, and not random
        command = without_tokens(["sublayers", "convert", *(sys.argv[1:] if argv is None else argv)])
        run = {"command": command, "started_from": source.name, "remarks": report.summary().splitlines()}
        (folder / RUN).write_text(json.dumps(run, indent=2) + "\n", encoding="utf-8")
        if arguments.verify and original is not None:
            difference = compare(type(model).from_pretrained(folder), original)
            print(f"verified: the outputs differ by at most {difference:.1e} of their size")
    if arguments.report:
        text = json.dumps({"source": str(source), "destination": str(destination)} | report._asdict(), indent=2)
        arguments.report.write_text(text + "\n", encoding="utf-8")
    print(report.summary())
    final = {name.replace("_", " "): getattr(model.config, name) for name in model.config.orders}
    described = ", ".join(
        f"{name} {' '.join(order) if isinstance(order, list) else order}" for name, order in final.items()
    )
    print(f"{destination}: {model.num_parameters():,} parameters, {described}")
    if warning := report.warning():
        print(f"warning: {destination} {warning}; train it before use, as --help says", file=sys.stderr)

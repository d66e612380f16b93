"""`sublayers convert`: other implementations' checkpoints as ours, in their own or any other order."""

import argparse
from pathlib import Path

import transformers
from safetensors.torch import load_file
from transformers import AutoConfig, AutoTokenizer, GPT2LMHeadModel, PreTrainedModel

from sublayers.configuration.sublayer_order import expand
from sublayers.training.checkpoint import load_fairseq
from sublayers.training.cli import refuse_to_overwrite
from sublayers.training.convert_bert import from_bert, from_macaron_bert
from sublayers.training.convert_lm import from_fairseq_lm, from_gpt2


def from_folder(source: Path, sublayer_order: str | None) -> PreTrainedModel:
    """Convert a transformers folder, and say what could not be taken over.

    Raises:
        ValueError: a model that is neither GPT-2 nor BERT.
    """
    config = AutoConfig.from_pretrained(source)
    if config.model_type == "gpt2":
        return from_gpt2(GPT2LMHeadModel.from_pretrained(source), sublayer_order)
    if config.model_type != "bert":
        raise ValueError(f"{source} holds {config.model_type!r}; GPT-2 and BERT can be converted")
    model_class = getattr(transformers, (config.architectures or ["BertModel"])[0])
    model, coverage = from_bert(model_class.from_pretrained(source), sublayer_order)
    letters = expand(model.config.sublayer_order)
    if coverage.new:
        print("new, with random weights:", ", ".join(f"layers.{i} ({letters[i]})" for i in coverage.new))
    for letter, number in coverage.unused.items():
        if number:
            print(f"not taken over: the last {number} {letter} of the source")
    return model


def main(argv: list[str] | None = None) -> None:
    """Convert a checkpoint into a new folder.

    Raises:
        FileExistsError: the folder holds files.
        ValueError: a checkpoint that this model has no place for, or a fairseq file without its number of heads.
    """
    parser = argparse.ArgumentParser(prog="sublayers convert", description=__doc__)
    source_help = "a transformers GPT-2 or BERT folder, or a fairseq LM or Macaron BERT (.pt, .safetensors)"
    parser.add_argument("source", type=Path, help=source_help)
    parser.add_argument("destination", type=Path, help="a new folder")
    parser.add_argument("--sublayer-order", "--sublayer_order", help="default: the source's own")
    parser.add_argument("--num-attention-heads", "--num_attention_heads", type=int, help="fairseq files do not tell")
    arguments = parser.parse_args(argv)
    refuse_to_overwrite(arguments.destination)
    if arguments.source.is_dir():
        model = from_folder(arguments.source, arguments.sublayer_order)
    elif arguments.num_attention_heads is None:
        raise ValueError("a fairseq file does not tell its number of heads; pass --num-attention-heads")
    else:
        load = load_file if arguments.source.suffix == ".safetensors" else load_fairseq
        state = load(arguments.source)
        if "encoder.embed_segment.weight" in state:
            if arguments.sublayer_order:
                raise ValueError("Macaron BERT is converted in its own order; leave out --sublayer-order")
            model = from_macaron_bert(state, arguments.num_attention_heads)
        else:
            model = from_fairseq_lm(state, arguments.num_attention_heads, sublayer_order=arguments.sublayer_order)
    model.save_pretrained(arguments.destination)
    if (arguments.source / "tokenizer_config.json").exists():
        AutoTokenizer.from_pretrained(arguments.source).save_pretrained(arguments.destination)
    print(f"{arguments.destination}: {model.num_parameters():,} parameters in the order {model.config.sublayer_order}")

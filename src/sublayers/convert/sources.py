"""What can be converted: sources are loaded, and each goes to the conversion of its kind."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedModel, logging

from sublayers.configuration.order import Order
from sublayers.convert.adaptive_span import find_adaptive_span, from_adaptive_span
from sublayers.convert.bert import ENCODERS, from_bert, from_macaron_bert
from sublayers.convert.decoders import BOTH_SIDES, ENCODERS as HEADS
from sublayers.convert.hybrids import HYBRIDS, from_hybrid
from sublayers.convert.iot import PREDICTOR, from_fairseq_iot
from sublayers.convert.language_models import from_fairseq_lm, from_gpt2
from sublayers.convert.lfm2 import from_lfm2
from sublayers.convert.llama import DECODERS, UNCOVERED, from_llama
from sublayers.convert.modern_bert import HEADS as MODERN_HEADS, from_modern_bert
from sublayers.convert.seq2seq import from_bart, from_fairseq_seq2seq
from sublayers.convert.transformer_xl import (
    MODEL_TYPE,
    find_transformer_xl,
    from_transformer_xl,
    load_folder,
)
from sublayers.convert.verify import ConversionReport, report_on
from sublayers.convert.weights import Pieces, Weights, agreed, load_checkpoint, read_fairseq, refusing_values
from sublayers.hub.loading import load, never_running_code
from sublayers.hub.tokenizers import save_tokenizers

# the fields of orders, by whether the source is an encoder-decoder
ORDERS = {False: ["sublayer_order"], True: ["encoder_sublayer_order", "decoder_sublayer_order"]}
# our model_type for each model_type of a source
FAMILIES = {
    **dict.fromkeys(["gpt2", "lfm2", *DECODERS, *HYBRIDS], "sandwich_lm"),
    **dict.fromkeys(["bart", "marian", "mbart", "pegasus"], "sandwich_seq2seq"),
    **dict.fromkeys([*ENCODERS, "eurobert", "modernbert"], "par_bert"),
    MODEL_TYPE: "par_transformer_xl",
}


# names that are not put together as all others
IRREGULAR = {"Gemma3TextForCausalLM": "Gemma3ForCausalLM"}


def classes(prefix: str, *heads: str, body: str = "") -> dict[str, Any]:
    """Say how folders are loaded, by the names of their classes: those with these heads and, as another one, a body."""
    names = {f"{prefix}Model": f"{prefix}{body}"} if body else {}
    names |= {f"{prefix}{head}": f"{prefix}{head}" for head in heads}
    names = {IRREGULAR.get(named, named): IRREGULAR.get(name, name) for named, name in names.items()}
    # not all have every head
    return {named: getattr(transformers, name) for named, name in names.items() if hasattr(transformers, name)}


# a body alone gets the head that is tied to its embeddings
CLASSES = {
    "eurobert": classes("EuroBert", "ForSequenceClassification", "ForTokenClassification", body="Model"),
    "gpt2": classes("GPT2", "LMHeadModel", "ForSequenceClassification", body="LMHeadModel"),
    "lfm2": classes("Lfm2", "ForCausalLM", body="ForCausalLM"),
    "marian": classes("Marian", "MTModel", body="MTModel"),
    "modernbert": classes("ModernBert", "Model", *(head for head in MODERN_HEADS if head)),
    **{
        prefix.lower(): classes(prefix, "ForConditionalGeneration", body="ForConditionalGeneration")
        for prefix in ("Bart", "MBart", "Pegasus")
    },
    **{
        model_type: classes(prefix, "ForCausalLM", "ForSequenceClassification", body="ForCausalLM")
        for model_type, prefix in (DECODERS | HYBRIDS).items()
    },
}
# the same for decoders whose tokens see both sides, which become encoders
BIDIRECTIONAL = {model_type: classes(prefix, *HEADS) for model_type, prefix in {"gpt2": "GPT2", **DECODERS}.items()}
# ELECTRA's head, which tells replaced words, has no counterpart here
BODIES = {"ElectraForPreTraining": "ElectraModel"}
# the values of is_causal that are supported, by family
IS_CAUSAL = {"sandwich_lm": (True, False), "par_bert": (False,), "sandwich_seq2seq": ()}
# the same of checkpoints that are files
CHECKPOINTS = {
    "fairseq: language model": "sandwich_lm",
    "fairseq: Transformer, Macaron, LightConv, DynamicConv": "sandwich_seq2seq",
    "fairseq: Macaron BERT": "macaron_bert",
    "fairseq: IOT": "iot_seq2seq",
    "Transformer-XL": "par_transformer_xl",
    "adaptive span": "sandwich_char_lm",
}
# a folder with one of these files has a tokenizer
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json")


def refuse_other_orders(orders: dict[str, str], known: list[str], window: int | None = None) -> None:
    """Check that only orders of stacks that the source has are given, and local attention only with its window.

    Raises:
        ValueError: another one is, or the source tells no window.
    """
    if foreign := sorted(f"--{name}" for name in orders.keys() - set(known)):
        taken = " and ".join(f"--{name}" for name in known) or "no order but its own"
        raise ValueError(f"leave out {' and '.join(foreign)}; this source takes {taken}")
    if local := [order for order in orders.values() if window is None and Order(order).has_windows]:
        raise ValueError(
            f"the order {local[0]!r} has sublayers w, for which this source tells no window; leave w out, or convert a "
            "source with a sliding_window, such as Mistral, Qwen and ModernBERT may have"
        )


def read_config(source: Path) -> dict[str, Any]:
    """Read the settings of a folder that transformers saved.

    Raises:
        FileNotFoundError: there is no config.json.
        ValueError: it holds no settings.
    """
    if not (source / "config.json").exists():
        raise FileNotFoundError(f"{source} has no config.json; is it a folder that transformers saved?")
    with never_running_code(source / "config.json"):
        config, _ = PreTrainedConfig.get_config_dict(source)
        return {**config}


def can_run(source: Path) -> bool:
    """Say whether transformers has the model of a source, and can compute what it should."""
    return source.is_dir() and read_config(source).get("model_type") != MODEL_TYPE


def check_is_causal(config: dict[str, Any]) -> bool:
    """Say whether a decoder with these settings is causal; unless they tell, it is.

    Raises:
        ValueError: a value of `is_causal` with which transformers computes what no model here does.
    """
    model_type, value = config["model_type"], config.get("is_causal", True)
    # StableLM's sdpa is causal without padding, whatever is_causal says; so are convolutions and recurrences. Gemma 3
    # has a field of its own
    known = IS_CAUSAL[FAMILIES[model_type]]
    if model_type in ("stablelm", "lfm2", "gemma3_text", "qwen3_next", *HYBRIDS):
        known = (True,)
    if "is_causal" in config and not (isinstance(value, bool) and value in known):
        others = " or ".join([*(f"with is_causal={other}" for other in known), "without it"])
        raise ValueError(f"is_causal={value!r} cannot be converted; only {model_type} {others} can")
    return value and not (model_type == "gemma3_text" and config.get("use_bidirectional_attention"))


def refuse_incomplete(source: Path, named: str, model: PreTrainedModel, found: Mapping[str, Any]) -> None:
    """Check that a folder has all weights; a body may lack its pooler, and the head that it gets here.

    Raises:
        ValueError: it lacks others, or has some of other shapes than its settings say.
    """
    if other_shapes := found["mismatched_keys"]:
        name, theirs, own = sorted(other_shapes)[0]
        raise ValueError(
            f"{source} has {name} of shape {(*theirs,)}, but config.json asks for {(*own,)}; copy both from one model"
        )
    body = "" if model.base_model is model else f"{model.base_model_prefix}."
    gets_head = named != type(model).__name__
    names = {name for name, _ in model.named_parameters()}
    new = {name for name in names if name.startswith("pooler.") or (gets_head and not name.startswith(body))}
    missing = {*found["missing_keys"]}
    if lacking := sorted(missing if new - missing else missing - new):
        raise ValueError(
            f"{source} lacks {len(lacking)} of the weights of {named}, such as {lacking[0]}; copy it again, or name "
            "the class whose weights it has as architectures in its config.json"
        )


def class_for(config: dict[str, Any], name: str | None, where: str | Path) -> type[PreTrainedModel]:
    """Find transformers' class with which a model is loaded that is converted.

    Args:
        config: its settings.
        name: of its own class, which may be a body; None: the settings do not tell.
        where: it is, for messages.

    Raises:
        ValueError: a model that transformers does not have or none here is like, a head that none here has, quantized
            weights, layers of different sizes, or another `is_causal` than here.
    """
    model_type = config.get("model_type")
    if model_type in UNCOVERED:
        raise ValueError(f"{where} holds {model_type!r}, whose {UNCOVERED[model_type]} no model here has")
    if model_type not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise ValueError(f"{where} holds {model_type!r}; of transformers' models, {known} can be converted")
    if config.get("quantization_config"):
        raise ValueError(f"{where} holds quantized weights; dequantize them and save that first")
    if layers := config.get("per_layer_config"):
        # transformers (5.24) reads them, and runs all layers alike
        raise ValueError(
            f"{where} has settings of single layers, per_layer_config={layers}, which no {model_type} of transformers "
            "follows; take them out of its config.json"
        )
    is_causal = check_is_causal(config)
    model_class: Any
    if model_type in ENCODERS:
        base = ENCODERS[model_type].base
        name = name or base.__name__.replace("PreTrained", "")
        model_class = getattr(transformers, BODIES.get(name, name), None)
        if not isinstance(model_class, type) or not issubclass(model_class, base):
            raise ValueError(f"{where} holds {name!r}, which is no {model_type} of transformers")
        return model_class
    is_encoder = model_type in BIDIRECTIONAL and not is_causal
    classes = (BIDIRECTIONAL if is_encoder else CLASSES)[model_type]
    if (model_class := classes.get(name or next(iter(classes)))) is None:
        named = f"{name!r} whose tokens see both sides" if is_encoder else repr(name)
        raise ValueError(f"{where} holds {named}, which none here is like; {', '.join(classes)} can be converted")
    return model_class


@contextmanager
def quiet() -> Iterator[None]:
    """Hide transformers' report of missing weights, as `refuse_incomplete` has its own."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)


def load_transformers(source: Path, config: dict[str, Any]) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Load a model from a folder with these settings, and say what was missing or unexpected there.

    Raises:
        ValueError: what `class_for` refuses, missing weights, an adapter, or a file that would run code.
    """
    name = next(iter(config.get("architectures") or []), None)
    model_class = class_for(config, name, source)
    options: dict[str, Any] = {"ignore_mismatched_sizes": True, "dtype": torch.float32, "output_loading_info": True}
    with quiet():
        # chunks change nothing, but they refuse lengths that they do not divide
        model, found = load(model_class, source, chunk_size_feed_forward=0, **options)
    refuse_incomplete(source, name or model_class.__name__, model, found)
    if (head := model.get_output_embeddings()) is not None:
        # whatever the settings say, transformers does not tie two matrices that differ
        model.config.tie_word_embeddings = head.weight is model.get_input_embeddings().weight
    return model, found


def from_transformers(source: Any, orders: dict[str, str]) -> tuple[PreTrainedModel, Pieces]:
    """Convert a model of transformers.

    Raises:
        ValueError: an order of a stack that it lacks, or what its conversion refuses.
    """
    window = getattr(source.config, "sliding_window", None) or None
    refuse_other_orders(orders, ORDERS[source.config.is_encoder_decoder], window)
    if source.config.model_type in ENCODERS:
        return from_bert(source, **orders)
    if source.config.model_type in (*DECODERS, *BOTH_SIDES):
        return from_llama(source, **orders)
    if source.config.model_type in HYBRIDS:
        return from_hybrid(source, **orders)
    others: dict[str, Any] = {"gpt2": from_gpt2, "lfm2": from_lfm2, "modernbert": from_modern_bert}
    return others.get(source.config.model_type, from_bart)(source, **orders)


def from_fairseq(
    weights: Weights, options: Mapping[str, Any], num_attention_heads: int | None, orders: dict[str, str]
) -> tuple[PreTrainedModel, Pieces]:
    """Convert the weights of a fairseq checkpoint, with the options that it tells.

    Raises:
        ValueError: what is not in the file is not given either, or an order of a stack that it lacks is.
    """
    # the file is read in any case, since heads that differ cannot be converted
    told = agreed(options, "attention_heads")
    if (heads := num_attention_heads or told) is None:
        raise ValueError("the file does not tell its number of heads; pass --num_attention_heads")
    known, convert_weights = ORDERS[True], cast(Any, from_fairseq_seq2seq)
    if "encoder.embed_segment.weight" in weights:
        known, convert_weights = [], from_macaron_bert
    elif PREDICTOR in weights or "decoder_max_order" in options:
        known, convert_weights = [], from_fairseq_iot
    elif "encoder.embed_tokens.weight" not in weights:
        known, convert_weights = ORDERS[False], from_fairseq_lm
    refuse_other_orders(orders, known)
    return convert_weights(weights, heads, options, **orders)


def from_weights(
    source: Path, orders: dict[str, str], num_attention_heads: int | None
) -> tuple[Weights, Mapping[str, Any], PreTrainedModel, Pieces]:
    """Convert a file of Transformer-XL, adaptive span or fairseq, or a folder of Transformer-XL.

    Returns:
        Its weights and settings, the model, and where the model's weights come from.

    Raises:
        ValueError: what its loading or its conversion refuses.
    """
    checkpoint = load_folder(source) if source.is_dir() else load_checkpoint(source)
    xl = (checkpoint, read_config(source)) if source.is_dir() else find_transformer_xl(checkpoint, source)
    span = find_adaptive_span(checkpoint)
    if xl or span:
        refuse_other_orders(orders, ORDERS[False])
    if xl:
        return *xl, *from_transformer_xl(*xl, orders.get("sublayer_order"))
    if span:
        return span, {}, *from_adaptive_span(span, sublayer_order=orders.get("sublayer_order"))
    weights, options = read_fairseq(checkpoint, source)
    return weights, options, *from_fairseq(weights, options, num_attention_heads, orders)


def take_tokenizer(source: Path, destination: Path, config: PreTrainedConfig) -> None:
    """Save a folder's tokenizer, if it has one, so that it loads beside any model: here, one with this configuration.

    Raises:
        ValueError: it cannot be loaded.
    """
    if any((source / name).exists() for name in TOKENIZER_FILES):
        # DistilBERT has BERT's, and ignores the second segment
        one_segment = config.to_dict().get("type_vocab_size") == 1
        options: dict[str, Any] = {"model_input_names": ["input_ids", "attention_mask"]} if one_segment else {}
        try:
            save_tokenizers([load(AutoTokenizer, source, **options)], destination, config)
        except (ImportError, ValueError) as error:
            raise ValueError(
                f"the tokenizer in {source} cannot be loaded; it has code of its own, or needs a package such as "
                "sentencepiece, or can be left out by moving its files away"
            ) from error


def convert(
    source: Path, orders: dict[str, str], num_attention_heads: int | None = None
) -> tuple[PreTrainedModel, ConversionReport, PreTrainedModel | None]:
    """Convert a folder of transformers or a checkpoint, in its own order or in the `orders` of its stacks.

    Returns:
        The model, where its weights come from, and the model of transformers that it was made from, if there is one.

    Raises:
        ValueError: what its loading or its conversion refuses, or values of other types or shapes than its kind has.
    """
    with refusing_values(f"{source} holds a value of another type or shape than its kind has; it is not converted"):
        if not can_run(source):
            weights, settings, model, pieces = from_weights(source, orders, num_attention_heads)
            return model.float(), report_on(weights, model, pieces, settings), None
        original, found = load_transformers(source, read_config(source))
        model, pieces = from_transformers(original, orders)
        report = report_on(original.state_dict(), model, pieces, original.config.to_dict(), found["missing_keys"])
        unknown = dict.fromkeys(sorted(found["unexpected_keys"]), f"unknown to {type(original).__name__}")
        report.left_out.update(unknown)
        return model, report, original

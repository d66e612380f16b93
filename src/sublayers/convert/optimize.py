"""Replace a loaded model by one of this package that gives the same answers faster, and undo it."""

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import nn
from transformers import Pipeline, PreTrainedModel

from sublayers.convert.graphs.attach import AUTO, FORMS, attach
from sublayers.convert.sources import class_for, from_transformers
from sublayers.convert.verify import compare
from sublayers.convert.weights import Pieces, refusing_values
from sublayers.modeling.graph_sessions import TORCH
from sublayers.modeling.linear import run_in_onednn
from sublayers.modeling.modeling_reordered_bert import ReorderedBertModel
from sublayers.modeling.modeling_sandwich_lm import SandwichLMModel
from sublayers.modeling.modeling_sublayers import SublayersPreTrainedModel
from sublayers.modeling.row_parts import has_hooks

Held = TypeVar("Held")
# texts that are verified in a batch
ROWS_AT_ONCE = 32
# what computes the token that a pooling reads, and no other: a body and its method
POOLED: dict[Any, tuple[type[PreTrainedModel], str]] = {
    "cls": (ReorderedBertModel, "forward_first_token"),
    "lasttoken": (SandwichLMModel, "forward_last_token"),
}


class Origin(NamedTuple):
    """What a model was made of: a model of transformers, and what each parameter was taken from."""

    source: PreTrainedModel
    pieces: Pieces


def optimize(
    model: Held,
    verify: bool | Sequence[Any] = False,
    prepack: bool = True,
    runtime: Literal["torch", "onnx", "openvino", "auto"] = "torch",
    int8: bool = False,
    least_agreement: float = 0.95,
) -> Held:
    """Make the same kind of model with the same answers, in which only what is read is computed, and no padding.

    Weights are shared, not copied, where they lie in memory as here; the device, their type, tokenizer, prompts and all
    else stay. Where a SentenceTransformer pools by one token, its token embeddings are of that token alone. Padding on
    the left is never counted as positions, as BERT does.

    Args:
        model: of transformers, with or without a head; or a `pipeline`, SentenceTransformer, CrossEncoder,
            SparseEncoder or MultiVectorEncoder with one.
        verify: whether to run it and what comes out on random tokens, with padding on all sides, and compare; or texts
            or pairs of texts for that.
        prepack: whether linear maps keep a second copy of their weights in the layout that the processor reads, where
            that is measured to be faster: in 32 bits, on CPUs. It is made at the first call without gradients.
        runtime: what runs the model where it is in evaluation on a CPU, without gradients, and only its outputs are
            wanted: ONNX Runtime or OpenVINO, which have to be installed, or, with "auto", whatever is fastest on this
            machine for one text and for batches of short and long ones, which takes up to 20 seconds to measure.
            Graphs and choice are kept in `$HF_HOME/sublayers`. `save_pretrained` saves them, too.
        int8: for graphs: linear maps and embeddings have 8 bits. How that changes what comes out for the texts of
            `verify` is printed.
        least_agreement: the least mean cosine to vectors in 32 bits, or correlation with the ranks of scores, that
            `int8` may have.

    Returns:
        Another model; the one that was given stays as it is. One of this package is returned itself.

    Raises:
        ModuleNotFoundError: the runtime is not installed.
        ValueError: a model that none here is like, or one with hooks, adapters, weights that are quantized or sharded,
            a compiled or own `forward`, or queries that are expanded by masked tokens; with `verify`, outputs that
            differ, or texts for what has no tokenizer; no graph can be made of the model, or `int8` has less than 20
            texts, or agrees too little.
    """
    if runtime not in (TORCH, AUTO, *FORMS):
        raise ValueError(f"runtime {runtime!r} is none of {', '.join((TORCH, *FORMS, AUTO))}")
    if int8 and runtime == TORCH:
        raise ValueError("int8 is for graphs; give runtime='onnx', 'openvino' or 'auto', too")
    parts = _parts(model)
    _refuse_read_padding(model)
    sources = [part for part in parts if not isinstance(part, SublayersPreTrainedModel)]
    batches = [None] if verify is True else _read(model, verify, parts) if verify else []
    exchanged = {id(source): _convert(source, batches) for source in sources}
    for part in parts:
        run_in_onednn(exchanged.get(id(part), part), prepack)
    made: Any = _exchange(model, exchanged) if exchanged else model
    if runtime != TORCH:
        texts = [batch for batch in batches if batch]
        for part in _parts(made):
            attach(part, _method(made), runtime, int8, texts, least_agreement)  # type: ignore[arg-type]
    if exchanged and not isinstance(made, PreTrainedModel) and made.tokenizer is not None:
        # others swallow what they do not read
        made.tokenizer.model_input_names = [*filter(_read_by(sources), made.tokenizer.model_input_names)]
    return made


def restore(model: Held) -> Held:
    """Make of what `optimize` made what it was given, in its own classes, with the weights as they are now.

    Raises:
        ValueError: nothing here was made by `optimize`, or its weights have other names or shapes by now.
    """
    exchanged = {id(part): _give_back(part) for part in _parts(model) if "origin" in vars(part)}
    if not exchanged:
        raise ValueError(f"{type(model).__name__} was not made by optimize in this process; open its own folder again")
    return _exchange(model, exchanged)


def _parts(held: Any) -> list[PreTrainedModel]:
    """Find the models of transformers in what is held, none of them within another."""
    module = held.model if isinstance(held, Pipeline) else held
    if isinstance(module, PreTrainedModel):
        return [module]
    # what sentence-transformers opens is a sequence of modules
    found = [*_outermost(module.children())] if isinstance(module, nn.Sequential) else []
    if not found and isinstance(module, nn.Sequential):
        raise ValueError(
            f"{type(held).__name__} has no model of transformers in it that could be optimized; use it as is"
        )
    if not found:
        raise ValueError(
            f"{type(held).__name__} cannot be optimized; give a model of transformers, a pipeline, a "
            "SentenceTransformer or a CrossEncoder, before it is compiled, wrapped or given adapters"
        )
    return found


def _refuse_read_padding(held: Any) -> None:
    """Check that a MultiVectorEncoder reads no token that is masked, as only padding should be."""
    for module in held if isinstance(held, nn.Sequential) else ():
        expansion = getattr(module, "query_expansion", None)
        if expansion and not expansion.get("attend"):
            raise ValueError(
                f"the query_expansion {expansion} reads tokens that are masked like padding, which is not computed; "
                "use the model as it is, or one whose expansion has attend=True"
            )


def _read_by(sources: Iterable[PreTrainedModel]) -> Callable[[str], bool]:
    """Tell the names of tensors that one of these models reads."""
    return {name for source in sources for name in inspect.signature(source.forward).parameters}.__contains__


def _read(held: Any, texts: Sequence[Any], sources: Iterable[PreTrainedModel]) -> list[Any]:
    """Tokenize texts to verify with: in padded batches, or each alone where there is no token to pad with."""
    if isinstance(held, PreTrainedModel) or held.tokenizer is None:
        raise ValueError(
            f"{type(held).__name__} has no tokenizer to read texts with; give verify=True for random tokens"
        )
    options = {"truncation": True, "return_tensors": "pt"}
    if held.tokenizer.pad_token is None:
        encoded = [held.tokenizer([text], **options) for text in texts]
    else:
        rows = [texts[i : i + ROWS_AT_ONCE] for i in range(0, len(texts), ROWS_AT_ONCE)]
        encoded = [held.tokenizer([*some], padding=True, **options) for some in rows]
    is_read = _read_by(sources)
    return [{name: batch[name] for name in batch if is_read(name)} for batch in encoded]


def _outermost(modules: Iterable[nn.Module]) -> Iterator[PreTrainedModel]:
    for module in modules:
        if isinstance(module, PreTrainedModel):
            yield module
        else:
            yield from _outermost(module.children())


def _convert(source: PreTrainedModel, batches: list[Any]) -> PreTrainedModel:
    """Convert a model in memory, and compare both on batches, of which None is random. Raises what `optimize` does."""
    name = type(source).__name__
    _refuse(source, name)
    model: Any
    parts = "parts of another type or shape than transformers gives it"
    with refusing_values(f"{name} has {parts}, and cannot be optimized"):
        model, pieces = from_transformers(source, {})
    if new := model.state_dict().keys() - pieces.keys() - model.all_tied_weights_keys.keys():
        # what no weights were there for is the pooler, if the source has none
        if not all("pooler." in name for name in new):
            raise ValueError(f"{name} has no weights for {sorted(new)[0]}; give a model with all its parts")
        model.base_model.pooler = None
    given = dict(source.named_parameters())
    for name, parameter in model.named_parameters():
        names = pieces[name].names if name in pieces else ()
        parameter.requires_grad_(all(given[one].requires_grad for one in names if one in given))
    model.set_attn_implementation(source.config._attn_implementation)
    model.set_experts_implementation(source.config._experts_implementation)
    model.config.name_or_path = source.config.name_or_path
    model.to(source.device)
    modes = [(module, module.training) for module in source.modules()]
    try:
        for batch in batches:
            compare(model, source, batch)
    finally:
        for module, is_training in modes:
            module.training = is_training
    model.train(source.training)
    vars(model)["origin"] = Origin(source, pieces)
    return model


def _refuse(source: PreTrainedModel, name: str) -> None:
    """Check that nothing about a model would be lost."""
    if not type(source).__module__.startswith("transformers.models."):
        raise ValueError(f"{name} is a class of its own, with a forward that is not known here; give transformers' own")
    if source._hf_peft_config_loaded:
        raise ValueError(f"{name} has adapters; merge them into its weights first")
    for module in source.modules():
        if {"forward", "_hf_hook"} & vars(module).keys() or module._compiled_call_impl is not None:
            raise ValueError(f"{name} is compiled or dispatched to devices; optimize it first, then do that again")
        if has_hooks(module):
            raise ValueError(f"{name} has hooks, which would be lost; optimize it first, then give it hooks")
    for parameter_name, parameter in source.named_parameters():
        if type(parameter) is not nn.Parameter or parameter.is_meta or not parameter.is_floating_point():
            raise ValueError(
                f"{parameter_name} of {name} is quantized, sharded or without values; optimize the model before that"
            )
    # the settings of a GGUF file name what its weights were before they were loaded
    class_for(source.config.to_dict() | {"quantization_config": None}, name, name)
    if source.config.is_encoder_decoder and source.base_model is source:
        raise ValueError(f"{name} is the body of an encoder-decoder; give one with its head")


def _give_back(part: Any) -> PreTrainedModel:
    """Write weights into the model that they were taken from, and return that."""
    (source, pieces), state = part.origin, part.state_dict()
    if any(name not in state or state[name].shape != piece.shape for name, piece in pieces.items()):
        raise ValueError(
            f"the weights of {type(part).__name__} have other names or shapes than optimize gave them; merge adapters, "
            "and resize nothing"
        )
    for name, piece in pieces.items():
        if not piece.names and state[name].any():
            raise ValueError(f"{name} has learned, and {type(source).__name__} has no place for it; save the model")
    with torch.no_grad():
        for name, piece in pieces.items():
            piece.give_back(state[name])
    return source.to(device=part.device, dtype=part.dtype).train(part.training)


def _exchange(held: Any, exchanged: dict[int, PreTrainedModel]) -> Any:
    """Copy what is held, with other models in the place of some, and with the same weights."""
    module = held.model if isinstance(held, Pipeline) else held
    memo: dict[int, Any] = {id(tensor): tensor for tensor in chain(module.parameters(), module.buffers())}
    copied = copy.deepcopy(held, memo | exchanged)
    if isinstance(copied, nn.Sequential):
        _read_what_is_pooled(copied)
    return copied


def _method(held: Any) -> str:
    """Name the method by which a model is called inside of what is held."""
    first = next(iter(held)) if isinstance(held, nn.Sequential) else None
    return getattr(first, "modality_config", {}).get("text", {}).get("method", "forward")


def _read_what_is_pooled(encoder: Any) -> None:
    """Let the model in a SentenceTransformer compute the token by which it pools, if it can."""
    first, *others = encoder
    # a router, for example, has none
    text = getattr(first, "modality_config", {}).get("text", {})
    if not others or text.get("method") not in ("forward", *(name for _, name in POOLED.values())):
        return
    # with a prompt, another token is pooled; other modules than a pooling have no mode
    mode = getattr(others[0], "pooling_mode", None) if getattr(others[0], "include_prompt", False) else None
    body, method = POOLED.get(mode, (type(None), ""))
    method = method if isinstance(first.model, body) else "forward"
    first.modality_config = first.modality_config | {"text": text | {"method": method}}

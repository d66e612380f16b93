"""The model that a student learns from: a sentence encoder or another one, or a model with a head."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict

import torch
from huggingface_hub.dataclasses import validate_typed_dict
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertPreTrainedModel,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from sublayers.convert.sources import class_for, from_transformers
from sublayers.hub.loading import MODULES, damaged, folder_of, load, never_running_code
from sublayers.hub.tokenizers import fit_tokenizer
from sublayers.modeling.heads import first_tokens
from sublayers.modeling.modeling_reordered_bert import ReorderedBertModel
from sublayers.modeling.modeling_sublayers import SublayersPreTrainedModel
from sublayers.modeling.plan import mean_state, select_positions

Pooling = Literal["mean", "cls"]
# names that sentence-transformers had for the modes of pooling, up to version 5
OLD_MODES = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}


class Settings(TypedDict, total=False):
    """What a SentenceTransformer has for all its modules."""

    prompts: dict[str, str]
    default_prompt_name: str
    similarity_fn_name: str
    max_seq_length: int


class Head(NamedTuple):
    """What stands on a teacher's body, and on its student's.

    Attributes:
        name: of a model that has it.
        auto_class: that loads such a model.
        architectures: ends of the names of classes that have its weights.
    """

    name: str
    auto_class: Any
    architectures: tuple[str, ...]


BODY = Head("encoder", AutoModel, ("",))
CLASSIFIER = Head("classifier", AutoModelForSequenceClassification, ("ForSequenceClassification",))
WORDS = Head("masked language model", AutoModelForMaskedLM, ("ForMaskedLM", "ForPreTraining"))
DECODER = Head("language model", AutoModelForCausalLM, ("ForCausalLM", "LMHeadModel"))


@dataclass
class Teacher:
    """A model, and how it is asked.

    Attributes:
        source: folder or repository that it is from.
        model: one of this package where it is a BERT, else as transformers has it.
        pooling: of the tokens of a text; None for a model with a head.
        head: of the model.
        is_sentence_encoder: whether it is from a SentenceTransformer.
        normalize: whether a SentenceTransformer of it gives embeddings of length 1.
        settings: `prompts` and others that a SentenceTransformer has for all its modules.
        max_seq_length: tokens that a SentenceTransformer reads, if it says so.
    """

    source: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    pooling: Pooling | None = None
    head: Head = BODY
    is_sentence_encoder: bool = False
    normalize: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    max_seq_length: int | None = None


def open_teacher(source: str, head: Head = BODY) -> Teacher:
    """Open a folder or repository of a SentenceTransformer, another encoder, or of a model with a head.

    What a folder does not say of pooling is the mean over all tokens.

    Raises:
        OSError: there is no such folder or repository.
        ValueError: the model has no such head, a SentenceTransformer does more than pool and normalise, weights
            are missing, or what `load` and `from_transformers` refuse.
    """
    tokenizer, config = load(AutoTokenizer, source), load(AutoConfig, source)
    if config.is_encoder_decoder or (tokenizer.pad_token is None and head is not DECODER):
        lacks = "decodes" if config.is_encoder_decoder else "has no token to pad with"
        raise ValueError(f"{source} {lacks}; give an encoder or classifier as a teacher")
    (architecture, *_) = config.architectures or [""]
    if not architecture.endswith(head.architectures):
        raise ValueError(f"{source} is no {head.name} but {architecture or 'a body'}; choose another --objective")
    with refusing_damage(source):
        about = read_sentence_encoder(source) if head is BODY else {}
    model, found = load(head.auto_class, source, dtype=torch.float32, output_loading_info=True)
    # we pool ourselves, so the model may lack the weights of BERT's pooler
    if lacking := sorted(name for name in found["missing_keys"] if head is not BODY or "pooler" not in name):
        raise ValueError(f"{source} has no weights for {', '.join(lacking[:5])}; give a trained model")
    if isinstance(model, BertPreTrainedModel) or head is DECODER:
        model = as_ours(model, source)
    fit_tokenizer(tokenizer, model.config)
    return Teacher(source, model.eval(), tokenizer, head=head, **about)


def as_ours(model: PreTrainedModel, source: str) -> PreTrainedModel:
    """Convert a model of transformers that is from a source, if it is not ours. Raises what the conversion raises."""
    if not isinstance(model, SublayersPreTrainedModel):
        class_for(model.config.to_dict(), type(model).__name__, source)
        model, _ = from_transformers(model, {})
    return model


@contextmanager
def refusing_damage(source: str | Path) -> Iterator[None]:
    """Say in one sentence, as a ValueError, that values in a source's files have other types than they should."""
    try:
        yield
    except (AttributeError, KeyError, StrictDataclassError, TypeError) as error:
        raise damaged(source, error) from error


def read_sentence_encoder(source: str) -> dict[str, Any]:
    """Read what a SentenceTransformer does with its model's states: the fields of `Teacher`.

    Raises:
        ValueError: it does what a student cannot learn here.
        others: those that `refusing_damage` knows.
    """
    folder = folder_of(source)
    modules = read_json(folder / MODULES) or []
    if not modules:
        return {"pooling": "mean"}
    kinds = [module["type"].split(".")[-1] for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]) or modules[0]["path"]:
        raise ValueError(
            f"{source} has the modules {', '.join(kinds)}; give an encoder of a Transformer in the folder itself, "
            "Pooling and perhaps Normalize"
        )
    pooling = read_json(folder / modules[1]["path"] / "config.json")
    old = [OLD_MODES.get(name, name) for name, is_on in pooling.items() if name.startswith("pooling_mode_") and is_on]
    mode = pooling.get("pooling_mode", old[0] if len(old) == 1 else old)
    if mode not in ("mean", "cls"):
        raise ValueError(f"{source} pools by {mode!r}; give an encoder that pools by 'mean' or 'cls'")
    if not pooling.get("include_prompt", True):
        raise ValueError(f"{source} leaves prompts out of its Pooling; give an encoder with include_prompt set to true")
    settings = read_settings(folder, source)
    return {
        "pooling": mode,
        "is_sentence_encoder": True,
        "normalize": "Normalize" in kinds,
        "max_seq_length": settings.pop("max_seq_length", None),
        "settings": settings,
    }


def read_settings(folder: Path, source: str) -> dict[str, Any]:
    """Read the `Settings` of a SentenceTransformer or CrossEncoder, whose folder is that of a source.

    Raises:
        ValueError: texts are changed before the tokenizer reads them.
        others: those that `refusing_damage` knows.
    """
    body = read_json(folder / "sentence_bert_config.json")
    if body.get("do_lower_case"):
        raise ValueError(f"{source} lowers the case of texts before its tokenizer does; set do_lower_case to false")
    told = read_json(folder / "config_sentence_transformers.json") | {"max_seq_length": body.get("max_seq_length")}
    settings: Any = {name: told[name] for name in Settings.__annotations__ if told.get(name) is not None}
    kind: Any = Settings
    validate_typed_dict(kind, settings)
    return settings


def answer(model: Any, inputs: Mapping[str, torch.Tensor], pooling: Pooling | None) -> torch.Tensor:
    """Ask a model for the embeddings of texts, (batch, hidden), or without pooling for logits, (batch, labels)."""
    if pooling is None:
        return model(**inputs).logits
    computes_first = pooling == "cls" and isinstance(model, ReorderedBertModel)
    if computes_first:
        return model.forward_first_token(**inputs).last_hidden_state[:, 0]
    return pool(model(**inputs).last_hidden_state, inputs["attention_mask"], pooling)


def pool(states: torch.Tensor, mask: torch.Tensor, pooling: Pooling) -> torch.Tensor:
    """Make one state of those of a text's tokens: (batch, length, hidden), (batch, length) -> (batch, hidden)."""
    if pooling == "mean":
        return mean_state(states, mask)
    return select_positions(states, first_tokens(states, mask))[:, 0]


def hash_weights(model: PreTrainedModel) -> str:
    """Hash a model's weights but those of a body's pooler: models with the same weights have the same hash."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        # a teacher that lacks the weights of its pooler gets other ones each time, and answers without them
        if name.startswith("pooler."):
            continue
        digest.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def hash_vocabulary(tokenizer: PreTrainedTokenizerBase) -> str:
    """Hash a tokenizer's vocabulary: tokenizers with the same ids for the same tokens have the same hash."""
    return hashlib.sha256(json.dumps(tokenizer.get_vocab(), sort_keys=True).encode()).hexdigest()


def read_json(file: Path) -> Any:
    """Read a file that somebody else may have made, {} if there is none. Raises what `never_running_code` raises."""
    if not file.exists():
        return {}
    with never_running_code(file):
        return json.loads(file.read_text(encoding="utf-8"))

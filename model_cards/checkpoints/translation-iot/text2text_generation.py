from .versions import TRANSFORMERS  # noqa: F401

"""Text to text with encoder-decoders: pipelines that transformers 5 removed."""

# transformers types the class attributes and methods that pipelines replace more narrowly than it uses them
# mypy: disable-error-code="assignment,misc,override"

import copy
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, tensor
from transformers import AutoTokenizer, BatchEncoding, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.pipelines.base import Pipeline, load_assistant_model

from .configuration_reordered_seq2seq import TARGET_TOKENIZER

# a task may name the languages
TRANSLATION_TASK = re.compile(r"translation_(.+)_to_(.+)")


class Text2TextGenerationPipeline(Pipeline):
    """Generate texts from texts with any encoder-decoder.

    Parameters and results are those of transformers 4. Each parameter may be given here or with a call, the target
    tokenizer only here.

    Args:
        truncation: whether a text is cut to what the model reads, or a strategy of the tokenizer; by default False.
        return_tensors: whether predictions are returned as token ids; by default False.
        return_text: whether predictions are returned as texts; by default if they are not returned as token ids.
        clean_up_tokenization_spaces: whether spaces before punctuation are left out; by default False.
        stop_sequence: text, or texts, that end a prediction.
        assistant_model: a smaller model, or where to load it from, that drafts tokens; for one text at a time.
        assistant_tokenizer: its tokenizer if it is not that of the model.
        target_tokenizer: tokenizer of the predictions, or where to load it from. By default that of the texts or, for
            a model whose two sides have vocabularies of their own, that in the model's folder `target_tokenizer`.
        kwargs: parameters of `generate()`, or a `generation_config`. They take precedence over the configuration's
            `task_specific_params` for this task, these over the model's generation config. `num_beams` is 4 and
            `max_new_tokens` 256, or fewer where the model has fewer positions, if nothing says otherwise.

    Raises:
        ValueError: a text is empty, none, or longer than what the model reads, or the model is no encoder-decoder.
    """

    return_name = "generated"
    # a PreTrainedModel with the methods of GenerationMixin
    model: Any
    tokenizer: PreTrainedTokenizerBase
    prefix: str
    _load_tokenizer = True
    _load_processor = False
    _load_image_processor = False
    _load_feature_extractor = False

    def __init__(
        self,
        model: PreTrainedModel,
        *args: Any,
        target_tokenizer: PreTrainedTokenizerBase | str | None = None,
        **kwargs: Any,
    ) -> None:
        if not (model.config.is_encoder_decoder and model.can_generate()):
            raise ValueError(f"{type(model).__name__} is no encoder-decoder that generates; load one that is")
        super().__init__(model, *args, **kwargs)
        # positions count from the first token
        self.tokenizer.padding_side = "right"
        self.target_tokenizer = self._load_target_tokenizer(target_tokenizer)
        task_params = dict((getattr(model.config, "task_specific_params", None) or {}).get(self.task, {}))
        self.prefix = task_params.pop("prefix", None) or getattr(model.config, "prefix", None) or ""
        config = self._forward_params.pop("generation_config", None) or GenerationConfig(**task_params)
        self.generation_config, self._forward_params = _updated(config, self._forward_params)

    def _load_target_tokenizer(self, given: PreTrainedTokenizerBase | str | None) -> PreTrainedTokenizerBase:
        if isinstance(given, str):
            return AutoTokenizer.from_pretrained(given)
        vocab_size = getattr(self.model.config, "encoder_vocab_size", None)
        if given is not None or vocab_size is None:
            return given or self.tokenizer
        folder = self.model.name_or_path
        try:
            return AutoTokenizer.from_pretrained(folder, subfolder=TARGET_TOKENIZER)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"encoder_vocab_size={vocab_size} says that the target side has a vocabulary of its own, but "
                f"{folder!r} has no tokenizer in {TARGET_TOKENIZER!r}; give a target_tokenizer"
            ) from error

    def __call__(self, inputs: Any, **kwargs: Any) -> Any:
        """Generate from one text or several.

        Args:
            inputs: a text, or a list, generator or data set of texts.
            kwargs: parameters of the pipeline, and `batch_size`.

        Returns:
            A list of dicts, one for each of `num_return_sequences`, best first; its key is "generated_text",
            "summary_text" or "translation_text", with `return_tensors` "..._token_ids". For a list of texts a list of
            such lists or, of one dict each, of dicts; for a generator or data set an iterator over such lists.
        """
        if isinstance(inputs, str) or not isinstance(inputs, Sequence):
            return super().__call__(inputs, **kwargs)
        results = super().__call__(list(enumerate(inputs)), **kwargs) if len(inputs) else []
        return [result[0] for result in results] if all(len(result) == 1 for result in results) else results

    def _sanitize_parameters(
        self,
        stop_sequence: str | list[str] | None = None,
        assistant_model: PreTrainedModel | str | None = None,
        assistant_tokenizer: Any = None,
        **others: Any,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        preprocess = _take(others, "truncation")
        postprocess = _take(others, "return_tensors", "return_text", "clean_up_tokenization_spaces")
        if stop_sequence is not None:
            others["stop_strings"] = stop_sequence
        if assistant_model is not None:
            assistant, tokenizer = load_assistant_model(self.model, assistant_model, assistant_tokenizer)
            others |= {"assistant_model": assistant, "assistant_tokenizer": tokenizer}
        return preprocess, others, postprocess

    def preprocess(
        self, inputs: str | tuple[int, str], truncation: bool | str = False, **languages: str
    ) -> BatchEncoding:
        """Tokenize a text, or a list's index and its text."""
        index, text = inputs if isinstance(inputs, tuple) else (None, inputs)
        name = "the text" if index is None else f"text {index}"
        if not (isinstance(text, str) and text.strip()):
            raise ValueError(f"{name} is {text!r}; give texts that are not empty")
        # relative positions have no end
        positions = getattr(self.model.config, "max_position_embeddings", None)
        encoding = self._tokenize(
            text,
            truncation=truncation,
            max_length=positions and min(positions, self.tokenizer.model_max_length),
            return_tensors="pt",
            **languages,
        )
        length = encoding["input_ids"].shape[1]
        if positions and length > positions:
            raise ValueError(
                f"{name} has {length} tokens, more than the {positions} that the model reads; "
                "shorten it, or cut it with truncation=True"
            )
        # no encoder-decoder reads segments
        encoding.pop("token_type_ids", None)
        return encoding

    def _tokenize(self, text: str, **kwargs: Any) -> BatchEncoding:
        return self.tokenizer(self.prefix + text, **kwargs)

    def _forward(
        self, model_inputs: dict[str, Tensor], generation_config: GenerationConfig | None = None, **kwargs: Any
    ) -> dict[str, Tensor]:
        config, model_kwargs = _updated(generation_config or self.generation_config, kwargs)
        self._set_defaults(config, assisted=model_kwargs.get("assistant_model") is not None)
        output = self.model.generate(
            **model_inputs, generation_config=config, tokenizer=self.target_tokenizer, **model_kwargs
        )
        sequences = output if isinstance(output, Tensor) else output.sequences
        return {"output_ids": sequences.unflatten(0, (len(model_inputs["input_ids"]), -1))}

    def _set_defaults(self, config: GenerationConfig, assisted: bool) -> None:
        own = self.model.generation_config
        # drafts are checked by greedy search and sampling only
        beams = 1 if assisted or config.prompt_lookup_num_tokens else 4
        defaults = {"num_beams": beams, "pad_token_id": self.target_tokenizer.pad_token_id}
        # generate() heeds max_new_tokens before max_length, wherever they are from
        if config.max_length is not None and config.max_new_tokens is None and own.max_new_tokens is not None:
            config.max_new_tokens, config.max_length = config.max_length - 1, None
        if config.max_length is None and own.max_length is None:
            # the first position is that of the start
            defaults["max_new_tokens"] = min(256, getattr(self.model.config, "max_position_embeddings", 257) - 1)
        unset = {name: value for name, value in defaults.items() if getattr(own, name) is None}
        config.update(defaults_only=True, **unset)

    def postprocess(
        self,
        model_outputs: dict[str, Tensor],
        return_tensors: bool = False,
        return_text: bool | None = None,
        clean_up_tokenization_spaces: bool = False,
    ) -> list[dict[str, Any]]:
        """Decode the predictions for a text."""
        records = []
        for ids in model_outputs["output_ids"][0]:
            record: dict[str, Any] = {}
            if return_text or not return_tensors:
                record[f"{self.return_name}_text"] = self.target_tokenizer.decode(
                    ids, skip_special_tokens=True, clean_up_tokenization_spaces=clean_up_tokenization_spaces
                )
            if return_tensors:
                record[f"{self.return_name}_token_ids"] = self._without_padding(ids)
            records.append(record)
        return records

    def _without_padding(self, ids: Tensor) -> Tensor:
        # a batch is as long as its longest prediction; where the padding's id is 0, beam search fills up with the end
        ends = self.model.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [ends]
        row = ids.tolist()
        while len(row) > 2 and (row[-1] == self.target_tokenizer.pad_token_id or row[-1] == row[-2] in ends):
            row.pop()
        return ids[: len(row)]

    def save_pretrained(self, save_directory: str | Path, **kwargs: Any) -> None:
        """Save the model and the tokenizers in a folder from which the pipeline can be loaded."""
        super().save_pretrained(save_directory, **kwargs)
        if self.target_tokenizer is not self.tokenizer:
            self.target_tokenizer.save_pretrained(Path(save_directory) / TARGET_TOKENIZER)


class SummarizationPipeline(Text2TextGenerationPipeline):
    """Summarize texts with any encoder-decoder; parameters are those of `Text2TextGenerationPipeline`."""

    return_name = "summary"


class TranslationPipeline(Text2TextGenerationPipeline):
    """Translate texts with any encoder-decoder; parameters are those of `Text2TextGenerationPipeline` and two more.

    Args:
        src_lang: language of the texts, for tokenizers of several languages; by default as the task's name says.
        tgt_lang: language to translate to, likewise.

    Raises:
        ValueError: the tokenizer is one of several languages, but not of these.
    """

    return_name = "translation"

    def _sanitize_parameters(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        languages = _take(kwargs, "src_lang", "tgt_lang")
        preprocess, forward, postprocess = super()._sanitize_parameters(**kwargs)
        return preprocess | languages, forward, postprocess

    def _tokenize(self, text: str, **kwargs: Any) -> BatchEncoding:
        build = getattr(self.tokenizer, "_build_translation_inputs", None)
        languages = {name: kwargs.pop(name, None) for name in ("src_lang", "tgt_lang")}
        if build is None:
            return super()._tokenize(text, **kwargs)
        if task := TRANSLATION_TASK.fullmatch(self.task):
            languages = {
                name: given or named for (name, given), named in zip(languages.items(), task.groups(), strict=True)
            }
        # each language has a special token, which some tokenizers put between underscores
        known = sorted(token.strip("_") for token in self.tokenizer.extra_special_tokens)
        for name, language in languages.items():
            if language is None or language.strip("_") not in known:
                raise ValueError(
                    f"{name}={language!r} is no language of {type(self.tokenizer).__name__}; give one of "
                    f"{', '.join(known)}"
                )
        encoding = build(text, **languages, **kwargs)
        # as a tensor, it can be part of a batch
        encoding["forced_bos_token_id"] = tensor([encoding["forced_bos_token_id"]])
        return encoding

    def _forward(self, model_inputs: dict[str, Tensor], **kwargs: Any) -> dict[str, Tensor]:
        if "forced_bos_token_id" in model_inputs:
            kwargs = {"forced_bos_token_id": int(model_inputs.pop("forced_bos_token_id")[0])} | kwargs
        return super()._forward(model_inputs, **kwargs)


def _updated(config: GenerationConfig, kwargs: dict[str, Any]) -> tuple[GenerationConfig, dict[str, Any]]:
    # from_dict returns unknown values beside the generation config
    config = copy.deepcopy(config)
    if {"max_length", "max_new_tokens"} & kwargs.keys():
        config.max_length = config.max_new_tokens = None
    return config, config.update(**kwargs)


def _take(parameters: dict[str, Any], *names: str) -> dict[str, Any]:
    """Move parameters out of others; those that a call does not name keep the pipeline's values."""
    return {name: value for name in names if (value := parameters.pop(name, None)) is not None}


# transformers copies the files that a saved module imports; these lines name the whole family
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .configuration_iot_seq2seq import IOTSeq2SeqConfig
    from .modeling_iot_seq2seq import IOTSeq2SeqForSequenceClassification

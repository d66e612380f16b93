from .versions import TRANSFORMERS  # noqa: F401

"""Extractive question answering: a pipeline that transformers 5 removed."""

# transformers types the class attributes and methods that pipelines replace more narrowly than it uses them
# mypy: disable-error-code="assignment,misc,override"

from collections.abc import Iterator
from math import exp, inf
from typing import Any

from torch import tensor
from torch.nn.functional import log_softmax
from transformers import PreTrainedTokenizerBase
from transformers.pipelines.base import ChunkPipeline

from .windows import TOKENIZING, best_answers, context_windows, longest_input

# those of `postprocess`; all others are of `preprocess`
ANSWER_PARAMETERS = ("max_answer_len", "top_k", "handle_impossible_answer")


class QuestionAnsweringPipeline(ChunkPipeline):
    """Find answers in contexts with any model for extractive question answering.

    Parameters and results are those of transformers 4. Each parameter may be given here or with a call.

    Args:
        max_seq_len: tokens of a window; by default 384, or fewer where the model reads no more.
        doc_stride: tokens that neighbouring windows share; by default 128, or half a window if that is less.
        max_question_len: tokens after which a question is cut; by default 64.
        align_to_words: whether answers are extended to whole words of their window; by default True.
        max_answer_len: most tokens of an answer; by default 15.
        top_k: number of answers; by default 1.
        handle_impossible_answer: whether "" is an answer, too, at 0 to 0; by default False.

    Raises:
        ValueError: a question or context is empty, or a window has no room for more than its neighbours share.
    """

    tokenizer: PreTrainedTokenizerBase
    _load_tokenizer = True
    _load_processor = False
    _load_image_processor = False
    _load_feature_extractor = False

    def __call__(self, inputs: Any = None, context: Any = None, *, question: Any = None, **kwargs: Any) -> Any:
        """Answer one question or several.

        Args:
            inputs: a dict with `question` and `context`, or a list, generator or data set of them.
            context: one context or, for several questions, a list; then `inputs` is no dict but the question.
            question: one question or a list, as a keyword.
            kwargs: parameters of the pipeline, and `batch_size`, in windows.

        Returns:
            A dict with `score`, `start`, `end` and `answer`, which is `context[start:end]`, or with `top_k` a list of
            them, best first; for several questions a list of that. A score is the probability of a span among all
            spans of its window and that of [CLS], which stands for "not here".
        """
        if context is not None or question is not None:
            inputs = _pair(inputs if question is None else question, context)
        if isinstance(inputs, list | tuple):
            # as in transformers 4, a list of one question gives one answer
            inputs = inputs[0] if len(inputs) == 1 else list(inputs)
        return super().__call__(inputs, **kwargs)

    def _sanitize_parameters(self, **parameters: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        # parameters that a call does not name keep the pipeline's values
        windows = {name: value for name, value in parameters.items() if value is not None}
        answers = {name: windows.pop(name) for name in ANSWER_PARAMETERS if name in windows}
        for name in ("max_answer_len", "top_k"):
            if answers.get(name, 1) < 1:
                raise ValueError(f"{name}={answers[name]} should be at least 1")
        return windows, {}, answers

    def preprocess(
        self,
        inputs: dict[str, str],
        max_seq_len: int | None = None,
        doc_stride: int | None = None,
        max_question_len: int = 64,
        align_to_words: bool = True,
    ) -> Iterator[dict[str, Any]]:
        """Cut a question with its context into windows."""
        for name in ("question", "context"):
            text = inputs.get(name) if isinstance(inputs, dict) else None
            if not (isinstance(text, str) and text.strip()):
                raise ValueError(f"the {name} is {text!r}; give a question and a context, both of them texts")
        max_seq_len = max_seq_len or min(384, longest_input(self.model.config, self.tokenizer))
        doc_stride = min(128, max_seq_len // 2) if doc_stride is None else doc_stride
        question = self._cut(inputs["question"], max_question_len)
        encoding = context_windows(self.tokenizer, [question], [inputs["context"]], max_seq_len, doc_stride)
        for window, offsets in enumerate(encoding["offsets"]):
            start = encoding["context_start"][window]
            if align_to_words:
                words = encoding.word_ids(window)[start : start + len(offsets)]
                offsets = [encoding.word_to_chars(window, word, 1) for word in words]
            yield {
                "context": inputs["context"],
                "context_start": start,
                "offsets": offsets,
                "cls_index": encoding["cls_index"][window],
                "is_last": window == len(encoding["offsets"]) - 1,
                **{name: tensor([encoding[name][window]]) for name in self.tokenizer.model_input_names},
            }

    def _cut(self, question: str, length: int) -> str:
        with TOKENIZING:
            tokens = self.tokenizer(
                question, add_special_tokens=False, truncation=True, max_length=length, return_offsets_mapping=True
            )
        return question[: max((end for _, end in tokens["offset_mapping"]), default=0)]

    def _forward(self, inputs: dict[str, Any]) -> dict[str, Any]:
        model_inputs = {name: inputs.pop(name) for name in self.tokenizer.model_input_names}
        outputs = self.model(**model_inputs)
        logits = {"start_logits": outputs.start_logits, "end_logits": outputs.end_logits}
        return {**inputs, **logits, "attention_mask": model_inputs["attention_mask"]}

    def postprocess(
        self,
        windows: list[dict[str, Any]],
        max_answer_len: int = 15,
        top_k: int = 1,
        handle_impossible_answer: bool = False,
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """Choose among the answers of all windows."""
        context = windows[0]["context"]
        no_answer, candidates = 0.0, []
        for window in windows:
            # a batch pads on either side, while positions count from the first token
            own = window["attention_mask"].bool()
            first, offsets = window["context_start"], window["offsets"]
            kept = [window["cls_index"], *range(first, first + len(offsets))]
            start, end = (log_softmax(window[name][own][kept].float(), -1) for name in ("start_logits", "end_logits"))
            no_answer = min(no_answer, float(start[0] + end[0]))
            candidates.append((start[1:], end[1:], offsets))
        answers = best_answers(candidates, max_answer_len, top_k)
        if handle_impossible_answer:
            answers = sorted([*answers, (no_answer, 0, 0)], reverse=True)[:top_k]
        # a context may have no tokens
        found = [
            {"score": exp(score), "start": start, "end": end, "answer": context[start:end]}
            for score, start, end in answers or [(-inf, 0, 0)]
        ]
        return found[0] if top_k == 1 else found


def _pair(questions: Any, contexts: Any) -> dict[str, Any] | list[dict[str, Any]]:
    if isinstance(questions, list | tuple) and isinstance(contexts, str):
        contexts = [contexts] * len(questions)
    if isinstance(questions, str) or isinstance(contexts, str) or contexts is None:
        return {"question": questions, "context": contexts}
    if len(questions) != len(contexts):
        raise ValueError(f"there are {len(questions)} questions for {len(contexts)} contexts; give one for each")
    return [{"question": q, "context": c} for q, c in zip(questions, contexts, strict=True)]


# transformers copies the files that a saved module imports; these lines name the whole family
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .configuration_par_bert import PARBertConfig
    from .modeling_par_bert import PARBertForMultipleChoice

"""Windows over texts that are too long to be read at once, and the best answers in them."""

from collections.abc import Iterable
from math import inf
from threading import Lock

from torch import Tensor
from torch.nn.functional import pad
from transformers import BatchEncoding, PreTrainedConfig, PreTrainedTokenizerBase

# a fast tokenizer keeps how it is to truncate, so that one thread would get the windows of another
TOKENIZING = Lock()


def context_windows(
    tokenizer: PreTrainedTokenizerBase, questions: list[str], contexts: list[str], max_length: int, stride: int
) -> BatchEncoding:
    """Tokenize questions with their contexts, and cut what is too long into windows that overlap.

    Args:
        tokenizer: a fast one, as slow ones do not know where in the text a token is from.
        questions: one per context; white space around them is left out.
        contexts: texts to find answers in.
        max_length: most tokens of a window, with the question and special tokens.
        stride: tokens of the context that a window shares with the next.

    Returns:
        The model's inputs, a row for each window, not padded, and lists of the same length: `example`, the row that a
        window is from; `context_start`, the position of its first context token; `offsets`, where in the context each
        of its context tokens starts and ends; `cls_index`, the position that stands for no answer (the first token
        where there is no [CLS]).

    Raises:
        ValueError: a slow tokenizer, or windows without room for more of the context than they share.
    """
    if not tokenizer.is_fast:
        raise ValueError(f"{type(tokenizer).__name__} gives no offsets of tokens; use a fast tokenizer")
    questions = [question.strip() for question in questions]
    with TOKENIZING:
        lengths = [len(ids) for ids in tokenizer(questions, add_special_tokens=False)["input_ids"]]
    room = max_length - max(lengths) - tokenizer.num_special_tokens_to_add(pair=True)
    if room <= stride:
        question = questions[lengths.index(max(lengths))]
        raise ValueError(
            f"windows of {max_length} tokens have room for {max(room, 0)} of the context beside the question "
            f"{question!r}, no more than the doc_stride={stride} that they share; make them longer or it less"
        )
    with TOKENIZING:
        encoding = tokenizer(
            questions,
            contexts,
            truncation="only_second",
            max_length=max_length,
            stride=stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
    encoding["example"] = encoding.pop("overflow_to_sample_mapping")
    starts, offsets, cls_indices = [], [], []
    for window, (ids, offset_mapping) in enumerate(
        zip(encoding["input_ids"], encoding.pop("offset_mapping"), strict=True)
    ):
        sequence_ids = encoding.sequence_ids(window)
        starts.append(sequence_ids.index(1) if 1 in sequence_ids else 0)
        offsets.append(offset_mapping[starts[-1] : starts[-1] + sequence_ids.count(1)])
        cls_indices.append(ids.index(tokenizer.cls_token_id) if tokenizer.cls_token_id in ids else 0)
    encoding.update({"context_start": starts, "offsets": offsets, "cls_index": cls_indices})
    return encoding


def best_answers(
    windows: Iterable[tuple[Tensor, Tensor, list[tuple[int, int]]]], max_length: int, number: int
) -> list[tuple[float, int, int]]:
    """Find the spans of a context with the greatest sum of a start and an end score.

    Args:
        windows: for each window the start and the end scores of its context tokens, both (tokens,), and the offsets of
            these tokens in the context.
        max_length: most tokens of a span.
        number: most spans to find.

    Returns:
        Score, start and end (characters, exclusive) of the best spans, best first, each from its best window.
    """
    scores: dict[tuple[int, int], float] = {}
    for start, end, offsets in windows:
        # ends[i, n] is the score of the end n tokens after i
        ends = pad(end, (0, max_length), value=-inf).unfold(0, max_length, 1)[: len(start)]
        sums = (start[:, None] + ends).flatten()
        best = sums.topk(min(number, len(sums)))
        for score, index in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            first, more = divmod(index, max_length)
            # the end is outside of the text, or the score is NaN
            if not score > -inf:
                continue
            span = offsets[first][0], offsets[first + more][1]
            if span[0] < span[1]:
                scores[span] = max(score, scores.get(span, -inf))
    return sorted(((score, *span) for span, score in scores.items()), reverse=True)[:number]


def longest_input(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> int:
    """Tokens that a model reads at once, as far as it and its tokenizer say."""
    # relative positions have no end: some configurations leave the number out or empty, and that of XLNet says -1
    positions = getattr(config, "max_position_embeddings", None) or -1
    return min(tokenizer.model_max_length, positions) if positions > 0 else tokenizer.model_max_length

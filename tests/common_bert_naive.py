"""Examples for the heads of the BERT-like families, and what comes of them, spelled out."""

import torch
from common import PAD, VOCAB
from common_naive import ACTIVATIONS, NaiveNetwork
from torch.nn.functional import pad as extend
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForNextSentencePrediction,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
)

LENGTHS = [9, 4, 7, 5, 6, 8, 3, 9]
FILLING = {"input_ids": PAD, "attention_mask": 0, "token_type_ids": 0, "labels": -100}

Row = dict[str, torch.Tensor]


def examples(head: type, lengths: list[int] = LENGTHS[:4]) -> list[Row]:
    """Rows of different lengths without padding, with labels for a head."""
    generator = torch.Generator().manual_seed(0)

    def draw(end: int, *shape: int) -> torch.Tensor:
        return torch.randint(end, shape, generator=generator)

    rows = []
    for length in lengths:
        words = torch.where(draw(3, length) == 0, draw(VOCAB, length), -100)
        labels = {
            AutoModel: {},
            AutoModelForPreTraining: {"labels": words, "next_sentence_label": draw(2)},
            AutoModelForMaskedLM: {"labels": words},
            AutoModelForNextSentencePrediction: {"labels": draw(2)},
            AutoModelForSequenceClassification: {"labels": draw(2)},
            AutoModelForTokenClassification: {"labels": words.clamp(max=1)},
            AutoModelForQuestionAnswering: {"start_positions": draw(length), "end_positions": draw(length)},
            AutoModelForMultipleChoice: {"labels": draw(2)},
        }[head]
        shape = (2, length) if head is AutoModelForMultipleChoice else (length,)
        inputs = {"input_ids": 3 + draw(VOCAB - 3, *shape), "token_type_ids": draw(2, *shape)}
        rows.append({**inputs, "attention_mask": torch.ones(shape, dtype=torch.long), **labels})
    return rows


def batch_of(rows: list[Row], side: str = "both") -> Row:
    """Pad rows on the right, on the left or on both sides, and stack them."""
    longest = max(row["input_ids"].shape[-1] for row in rows)
    padded = []
    for row in rows:
        gap = longest - row["input_ids"].shape[-1]
        left = {"right": 0, "left": gap, "both": (gap + 1) // 2}[side]
        padded.append({})
        for name, tensor in row.items():
            if name in FILLING and tensor.ndim:
                tensor = extend(tensor, (left, gap - left), value=FILLING[name])
            padded[-1][name] = tensor + left if "positions" in name else tensor
    return {name: torch.stack([row[name] for row in padded]) for name in padded[0]}


def rows_of(batch: Row) -> list[Row]:
    return [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]


def unlabelled(batch: Row) -> Row:
    return {name: tensor for name, tensor in batch.items() if name in FILLING and name != "labels"}


def run_alone(model: PreTrainedModel, rows: list[Row]) -> list:
    """Run each row by itself; to record all states, everything is computed everywhere."""
    return [model(**unlabelled(batch_of([row])), output_hidden_states=True) for row in rows]


def naive_loss(rows: list[Row], outputs: list, num_items: int | None = None) -> torch.Tensor:
    """The loss spelled out from the outputs of each row."""

    def nll(logits: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return -logits.log_softmax(-1)[label]

    of_tokens, of_rows, of_pairs = [], [], []
    for row, out in zip(rows, outputs, strict=True):
        if "start_positions" in row:
            of_rows.append(nll(out.start_logits[0], row["start_positions"]) / 2)
            of_rows[-1] = of_rows[-1] + nll(out.end_logits[0], row["end_positions"]) / 2
        elif not row["labels"].ndim:
            of_rows.append(nll(out.logits[0], row["labels"]))
        else:
            logits = out["prediction_logits" if "prediction_logits" in out else "logits"][0]
            mine = [nll(logits[i], label) for i, label in enumerate(row["labels"]) if label != -100]
            of_tokens += mine
            if "next_sentence_label" in row:
                pair = nll(out.seq_relationship_logits[0], row["next_sentence_label"])
                of_pairs.append(pair if num_items is None else pair * len(mine))
    groups = [group for group in (of_tokens, of_rows, of_pairs) if group]
    return sum(sum(group) / (num_items or len(group)) for group in groups)


def naive_network(model: PreTrainedModel, ids: torch.Tensor, segments: torch.Tensor) -> dict[str, torch.Tensor]:
    """A pre-training model written out from its weights, position by position."""
    config, naive, bert = model.config, NaiveNetwork(model), model.config.head_type == "bert"
    table = naive.weights["model.embed_token_types.weight"]
    pairs = zip(ids, segments, strict=True)
    states = [naive.embed("model", i, token, table[segment]) for i, (token, segment) in enumerate(pairs)]
    states = naive.run("model", states, config.sublayer_order, is_causal=False)
    pooled = ACTIVATIONS[config.pooler_act](naive.affine(states[0], "model.pooler.dense")) if bert else states[0]
    follows = naive.affine(pooled, "seq_relationship.scores")
    words = [ACTIVATIONS[config.hidden_act](naive.affine(x, "lm_transform.dense")) for x in states]
    return {
        "hidden_states": torch.stack(naive.hidden_states["model"]),
        "pooler_output": pooled,
        "prediction_logits": torch.stack([naive.affine(naive.norm(x, "lm_transform.norm"), "lm_head") for x in words]),
        "seq_relationship_logits": follows if bert else torch.stack([follows[0], torch.tensor(0.0)]),
    }

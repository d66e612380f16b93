"""Examples for the heads of the BERT-like families, and what comes of them, spelled out."""

import math

import torch
from common import PAD, VOCAB
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

from sublayers import expand

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
    config, weights = model.config, model.state_dict()
    size, heads = config.hidden_size, config.num_attention_heads

    def linear(x, name, bias=True):
        y = (weights[f"{name}.weight"] * x).sum(1)
        return y + weights[f"{name}.bias"] if bias else y

    def norm(x, name, affine=True):
        centred = x - x.mean()
        x = centred / (centred.square().mean() + config.layer_norm_eps).sqrt()
        return x * weights[f"{name}.weight"] + weights[f"{name}.bias"] if affine else x

    def act(x, name):
        if name == "tanh":
            return x.tanh()
        return x.clamp(min=0) if name == "relu" else x * (1 + torch.erf(x / math.sqrt(2))) / 2

    def sinusoid(position):
        rates = [position / 10000 ** (i / (size // 2 - 1)) for i in range(size // 2)]
        return torch.tensor([math.sin(rate) for rate in rates] + [math.cos(rate) for rate in rates])

    def attend(inputs, name):
        q, k, v = ([linear(x, f"{name}.{p}_proj").view(heads, -1) for x in inputs] for p in "qkv")
        outputs = []
        for i in range(len(inputs)):
            mixed = []
            for h in range(heads):
                scores = torch.stack([q[i][h] @ key[h] / math.sqrt(size // heads) for key in k])
                mixed.append(sum(p * value[h] for p, value in zip(scores.softmax(0), v, strict=True)))
            outputs.append(linear(torch.cat(mixed), f"{name}.o_proj"))
        return outputs

    states = []
    for i, (token, segment) in enumerate(zip(ids, segments, strict=True)):
        state = weights["model.embed_tokens.weight"][token] * (math.sqrt(size) if config.scale_embedding else 1)
        position = i + config.position_offset
        learned = config.position_embedding_type == "learned"
        state = state + (weights["model.embed_positions.weight"][position] if learned else sinusoid(position))
        state = state + weights["model.embed_token_types.weight"][segment]
        states.append(norm(state, "model.embed_norm") if config.embedding_norm else state)
    recorded = [torch.stack(states)]
    order = expand(config.sublayer_order)
    for depth, letter in enumerate(order):
        name, pre = f"model.layers.{depth}", config.norm_position == "pre"
        inputs = [norm(x, f"{name}.norm", config.norm_affine) for x in states] if pre else states
        if letter == "s":
            outputs, scale = attend(inputs, f"{name}.mixer"), 1
        else:
            kind = config.pre_attention_act if order[depth + 1 : depth + 2] == "s" else None
            hidden = [act(linear(x, f"{name}.mixer.fc1"), kind or config.hidden_act) for x in inputs]
            outputs, scale = [linear(x, f"{name}.mixer.fc2") for x in hidden], config.feed_forward_scale
        states = [x + scale * y for x, y in zip(states, outputs, strict=True)]
        if not pre:
            states = [norm(x, f"{name}.norm", config.norm_affine) for x in states]
        recorded.append(torch.stack(states))
    if config.final_norm:
        states = [norm(x, "model.norm", config.norm_affine) for x in states]
        recorded[-1] = torch.stack(states)
    bert = config.head_type == "bert"
    pooled = act(linear(states[0], "model.pooler.dense"), config.pooler_act) if bert else states[0]
    follows = linear(pooled, "seq_relationship.scores")
    words = [norm(act(linear(x, "lm_transform.dense"), config.hidden_act), "lm_transform.norm") for x in states]
    return {
        "hidden_states": torch.stack(recorded),
        "pooler_output": pooled,
        "prediction_logits": torch.stack([linear(x, "lm_head", bias=bert) for x in words]),
        "seq_relationship_logits": follows if bert else torch.stack([follows[0], torch.tensor(0.0)]),
    }

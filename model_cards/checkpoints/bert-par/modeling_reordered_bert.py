"""The encoder of the BERT-like families and its heads, over any order of sublayers.

Devlin et al. (2019), "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding".
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.modeling_outputs import (
    BaseModelOutputWithPooling,
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    NextSentencePredictorOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.models.bert.modeling_bert import BertForPreTrainingOutput
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.import_utils import is_tracing
from transformers.utils.output_capturing import capture_outputs

from .configuration_reordered_bert import ReorderedBertConfig
from .body import Body
from .dropout import dropout
from .embeddings import check_shape, check_tokens, look_up
from .heads import first_tokens, run_and_read, run_planned
from .losses import IGNORED, check_labels, classification_loss, mean_cross_entropy
from .modeling_sublayers import SublayersPreTrainedModel
from .norm import hidden_norm
from .plan import Plan, mean_state, select_positions
from .relative_bias import RelativeBias
from .row_parts import divide_rows, run_in_parts


class ReorderedBertPreTrainedModel(SublayersPreTrainedModel):
    """Base of the BERT-like models."""

    config: ReorderedBertConfig


class Transform(nn.Module):
    """What stands between states and their scores: (..., hidden) -> (..., hidden)."""

    def __init__(self, config: ReorderedBertConfig, act: str, has_norm: bool):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.act = ACT2FN[act]
        self.norm = hidden_norm(config, affine=True) if has_norm else nn.Identity()

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Map, activate, normalise."""
        return self.norm(self.act(self.dense(hidden_states)))


class Pooler(Transform):
    """BERT's summary of a text, made from its first token's state: (batch, hidden) -> (batch, hidden)."""

    def __init__(self, config: ReorderedBertConfig):
        super().__init__(config, config.pooler_act, config.pooler_norm)
        self.dropout = dropout(config, "pooler_dropout")

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Drop, map, activate, normalise."""
        return super().forward(self.dropout(hidden_states))


class ReorderedBertModel(ReorderedBertPreTrainedModel, Body):
    """Token ids to hidden states that know both sides: (batch, length) -> (batch, length, hidden)."""

    def __init__(self, config: ReorderedBertConfig, add_pooling_layer: bool = True):
        hidden_size, untrained = config.hidden_size, 0 if config.untrained_first_segment else None
        number = config.relative_attention_num_buckets
        super().__init__(
            config,
            [config.order],
            is_causal=False,
            embed_tokens=nn.Embedding(config.vocab_size, hidden_size),
            embed_token_types=nn.Embedding(config.type_vocab_size, hidden_size, padding_idx=untrained),
            embed_norm=hidden_norm(config, affine=True) if config.embedding_norm else None,
            relative_bias=None if number is None else RelativeBias(number, config.num_attention_heads),
        )
        self.pooler: nn.Module | None = None
        if add_pooling_layer:
            # what heads call the pooled state is the raw one where there is no pooler
            self.pooler = Pooler(config) if config.head_type == "bert" else nn.Identity()
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        plan: Plan | None = None,
        **kwargs,
    ) -> BaseModelOutputWithPooling:
        """Run the stack; a plan restricts the output to the positions that are read.

        There is a pooled state without a plan, if it is that of a token.

        Raises:
            ValueError: neither or both of `input_ids` and `inputs_embeds`, ids outside their tables, or a sequence
                longer than `max_position_embeddings`.
        """
        config = self.config
        tokens = check_tokens(input_ids, inputs_embeds, attention_mask)
        plan = plan or Plan.of(tokens, attention_mask, is_recorded=self.is_recorded(**kwargs))
        # routers write down what they did with a whole batch
        if "routing" not in kwargs and (parts := divide_rows(self, tokens, attention_mask, plan)):
            names = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds")
            values = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
            return run_in_parts(self.forward, parts, plan, dict(zip(names, values, strict=True)), **kwargs)
        if inputs_embeds is None:
            inputs_embeds = self.look_up_tokens(tokens)
        batch = self.batch(inputs_embeds, plan, attention_mask, position_ids)
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(batch.numbers)
        remedy = "a text has as many segments as type_vocab_size says"
        segments = look_up(self.embed_token_types, token_type_ids, "token_type_ids", config.type_vocab_size, remedy)

        hidden_states = self.norm(self.layers(self.embed(batch, segments), batch, **kwargs))
        pooled = None
        if self.pooler is not None and plan.read is None and config.tail_query == "first":
            pooled = self.pooler(select_positions(hidden_states, first_tokens(tokens, attention_mask))[:, 0])
        return BaseModelOutputWithPooling(last_hidden_state=hidden_states, pooler_output=pooled)

    def forward_first_token(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs,
    ) -> BaseModelOutputWithPooling:
        """Run for each row's first token that is not padding, all that pooling by it reads: (batch, 1, hidden).

        With `tail_query="mean"`, the mean of all states takes its place where the tail of the order begins. Hidden
        states and attention weights, where they are asked for, are those of every token or, in that tail, of the mean.
        Raises what `forward` raises.
        """
        tokens = check_tokens(input_ids, inputs_embeds, attention_mask)
        takes_mean = self.config.tail_query == "mean"
        first = first_tokens(tokens, attention_mask)
        state, outputs = run_planned(
            self,
            Plan.of(tokens, attention_mask, first, self.is_recorded(**kwargs), takes_mean),
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        return BaseModelOutputWithPooling(
            last_hidden_state=state,
            pooler_output=None if self.pooler is None else self.pooler(state[:, 0]),
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


@dataclass
class LabelledLMOutput(MaskedLMOutput):
    """Scores; in training with labels, those of the labelled words alone (labelled, vocabulary)."""

    labelled_logits: torch.Tensor | None = None


@dataclass
class PreTrainingOutput(BertForPreTrainingOutput):
    """As `LabelledLMOutput`."""

    labelled_logits: torch.Tensor | None = None


class ReorderedBertForPreTraining(ReorderedBertPreTrainedModel):
    """Masked words and whether the second segment follows the first, BERT's two objectives."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}

    def __init__(self, config: ReorderedBertConfig):
        if config.tail_query != "first":
            raise ValueError(
                f"tail_query={config.tail_query!r} runs the tail for no token, so words cannot be read beside it; "
                "pre-train on masked words alone, or give tail_query='first'"
            )
        super().__init__(config)
        self.model = ReorderedBertModel(config)
        self.lm_transform = Transform(config, config.hidden_act, has_norm=True)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=config.head_type == "bert")
        self.seq_relationship = NextSentenceHead(config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        next_sentence_label: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs,
    ) -> PreTrainingOutput:
        """Score words as `ReorderedBertForMaskedLM` does, and sentence pairs: (batch, 2), class 0 where B follows A.

        The loss is the mean over labelled words plus the mean over pairs. Given `num_items_in_batch`, the number of
        labelled words in all accumulated batches, each pair counts as often as it has such words: the sum over
        batches is then the same however the rows are divided, which only the number of pairs would allow for a mean.
        """
        tokens = check_tokens(input_ids, inputs_embeds, attention_mask)
        (labelled, words), first = find_labelled(labels, tokens, attention_mask), first_tokens(tokens, attention_mask)
        read = None
        if labelled is not None:
            is_first = torch.zeros_like(labelled).scatter(1, first.expand(len(labelled), 1), True)
            read = labelled | is_first
        hidden_states, outputs = run_planned(
            self.model,
            Plan.of(tokens, words, read, self.is_recorded(**kwargs)),
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        if labelled is None:
            pooled = select_positions(hidden_states, first)[:, 0]
        else:
            pooled, hidden_states = hidden_states[is_first[read]], hidden_states[labelled[read]]
        logits = self.lm_head(self.lm_transform(hidden_states))
        next_sentence_logits = self.seq_relationship(self.model.pooler(pooled))

        loss = None if labels is None else masked_lm_loss(logits, labels, labelled, num_items_in_batch)
        if next_sentence_label is not None:
            check_labels(next_sentence_label, next_sentence_logits)
            losses = nn.functional.cross_entropy(next_sentence_logits, next_sentence_label.view(-1), reduction="none")
            if labels is not None and num_items_in_batch is not None:
                next_sentence_loss = (losses * (labels != IGNORED).sum(1)).sum() / num_items_in_batch
            else:
                next_sentence_loss = losses.mean()
            loss = next_sentence_loss if loss is None else loss + next_sentence_loss
        every, few = divide_scores(logits, labelled, self.training)
        return PreTrainingOutput(
            loss=loss,
            prediction_logits=every,
            labelled_logits=few,
            seq_relationship_logits=next_sentence_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class ReorderedBertForMaskedLM(ReorderedBertPreTrainedModel):
    """Masked words: (batch, length) -> (batch, length, vocabulary)."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}

    def __init__(self, config: ReorderedBertConfig):
        super().__init__(config)
        self.model = ReorderedBertModel(config, add_pooling_layer=False)
        self.lm_transform = Transform(config, config.hidden_act, has_norm=True)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=config.head_type == "bert")
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs,
    ) -> LabelledLMOutput:
        """Score every word or, given labels (batch, length), those whose label is not -100.

        Other positions are not computed then (compiled graphs, whose shapes are fixed, compute all): their logits are
        NaN. In training there are no `logits` then, only `labelled_logits` (labelled, vocabulary).
        """
        tokens = check_tokens(input_ids, inputs_embeds, attention_mask)
        labelled, words = find_labelled(labels, tokens, attention_mask)
        hidden_states, outputs = run_planned(
            self.model,
            Plan.of(tokens, words, labelled, self.is_recorded(**kwargs)),
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        logits = self.lm_head(self.lm_transform(hidden_states))
        every, few = divide_scores(logits, labelled, self.training)
        return LabelledLMOutput(
            loss=None if labels is None else masked_lm_loss(logits, labels, labelled, num_items_in_batch),
            logits=every,
            labelled_logits=few,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class NextSentenceHead(nn.Module):
    """Whether one text follows another: (batch, hidden) -> (batch, 2), class 0 where it does."""

    def __init__(self, config: ReorderedBertConfig):
        super().__init__()
        self.scores = nn.Linear(config.hidden_size, 2 if config.head_type == "bert" else 1)

    def forward(self, pooled: torch.Tensor) -> torch.Tensor:
        """Score both classes; a single logit is that of class 0, against 0 for class 1."""
        scores = self.scores(pooled)
        return scores if scores.shape[-1] == 2 else nn.functional.pad(scores, (0, 1))


def find_labelled(
    labels: torch.Tensor | None, tokens: torch.Tensor, attention_mask: torch.Tensor | None
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Find which of the labels (batch, length) count, and the mask of what is computed.

    The former is None where every position is scored: without labels, and in a graph, which has fixed shapes.

    Raises:
        ValueError: there are not as many labels as tokens (batch, length, ...).
    """
    check_shape("labels", labels, *tokens.shape[:2])
    if labels is None or not is_tracing(labels):
        return None if labels is None else labels != IGNORED, attention_mask
    # padding that has a label counts as a word
    is_mask = attention_mask is not None and attention_mask.ndim == 2
    return None, attention_mask.bool() | (labels != IGNORED) if is_mask else attention_mask  # type: ignore[union-attr]


def masked_lm_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    labelled: torch.Tensor | None,
    num_items_in_batch: torch.Tensor | int | None,
) -> torch.Tensor:
    """Mean over the labels (batch, length) that count, from their logits (labelled, vocabulary) or from all."""
    targets = labels if labelled is None else labels[labelled]
    return mean_cross_entropy(logits.flatten(0, -2), targets.flatten(), num_items_in_batch)


def divide_scores(
    logits: torch.Tensor, labelled: torch.Tensor | None, training: bool
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Decide what is returned as `logits` and as `labelled_logits`: outside of training all as `logits`.

    Logits (labelled, vocabulary), or those of all words without `labelled`, become (batch, length, vocabulary) with NaN
    elsewhere.
    """
    if labelled is None:
        return logits, None
    if training:
        return None, logits
    placed = logits.new_full((*labelled.shape, logits.shape[-1]), float("nan"))
    placed[labelled] = logits
    return placed, None


class Head(ReorderedBertPreTrainedModel):
    """What heads with one kind of score share; each says what it reads, how it scores that, and what the loss is."""

    # its fields are those of a SequenceClassifierOutput, which sentence-transformers looks up in the annotation
    output_class: Any

    def read(self, **inputs) -> tuple[torch.Tensor, Any]:
        """Run the body; return the states that are scored, and its outputs."""
        raise NotImplementedError

    def compute_logits(self, states: torch.Tensor) -> torch.Tensor:
        """Score states: (..., hidden) -> (..., classes)."""
        raise NotImplementedError

    def loss(self, logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch: Any) -> torch.Tensor:
        """Mean cross-entropy of class ids (...), or -100 for what does not count, under logits (..., classes)."""
        return mean_cross_entropy(logits.flatten(0, -2), labels.flatten(), num_items_in_batch)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs,
    ) -> SequenceClassifierOutput:
        """Score what the head reads, and compute its loss where there are labels."""
        states, outputs = self.read(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        logits = self.compute_logits(states)
        return self.output_class(
            loss=None if labels is None else self.loss(logits, labels, num_items_in_batch),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class FirstTokenHead(Head):
    """A head that reads the pooled first token of each text, the only one that the tail of the order runs for."""

    def __init__(self, config: ReorderedBertConfig):
        super().__init__(config)
        self.model = ReorderedBertModel(config)

    def read(self, **inputs) -> tuple[torch.Tensor, Any]:
        """Run the body; return the pooled states (batch, hidden), and its outputs."""
        if self.config.classifier_pooling == "cls":
            outputs = self.model.forward_first_token(**inputs)
            return outputs.pooler_output, outputs
        states, outputs = run_and_read(self.model, 0, **inputs)
        return self.model.pooler(mean_state(states, inputs["attention_mask"])), outputs


class EveryTokenHead(Head):
    """A head that reads every token."""

    def __init__(self, config: ReorderedBertConfig):
        super().__init__(config)
        self.model = ReorderedBertModel(config, add_pooling_layer=config.pools_tokens)

    def read(self, **inputs) -> tuple[torch.Tensor, Any]:
        """Run the body; return all states (batch, length, hidden), and its outputs."""
        states, outputs = run_and_read(self.model, 0, **inputs)
        return states if self.model.pooler is None else self.model.pooler(states), outputs


class ReorderedBertForNextSentencePrediction(FirstTokenHead):
    """Whether the second segment follows the first: (batch, length) -> (batch, 2).

    Class 0 says that it follows, class 1 that it does not; labels (batch) are these classes.
    """

    output_class = NextSentencePredictorOutput

    def __init__(self, config: ReorderedBertConfig):
        super().__init__(config)
        self.seq_relationship = NextSentenceHead(config)
        self.post_init()

    def compute_logits(self, states: torch.Tensor) -> torch.Tensor:
        """Score both classes: (batch, hidden) -> (batch, 2)."""
        return self.seq_relationship(states)


class ReorderedBertForSequenceClassification(FirstTokenHead):
    """Labels of a text or a pair of texts: (batch, length) -> (batch, labels).

    What is given as labels are class ids (batch), several labels (batch, labels) or numbers, by `config.problem_type`.
    """

    output_class = SequenceClassifierOutput

    def __init__(self, config: ReorderedBertConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.dropout = dropout(config, "classifier_dropout")
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)  # type: ignore[arg-type]
        self.post_init()

    def compute_logits(self, states: torch.Tensor) -> torch.Tensor:
        """Score each label: (batch, hidden) -> (batch, labels)."""
        return self.classifier(self.dropout(states))

    def loss(self, logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch: Any) -> torch.Tensor:
        """See `classification_loss`."""
        return classification_loss(logits, labels, self.config, num_items_in_batch)


class ReorderedBertForMultipleChoice(FirstTokenHead):
    """Which of several texts is right: (batch, choices, length) -> (batch, choices)."""

    output_class = MultipleChoiceModelOutput

    def __init__(self, config: ReorderedBertConfig):
        super().__init__(config)
        self.dropout = dropout(config, "classifier_dropout")
        self.classifier = nn.Linear(config.hidden_size, 1)
        self.post_init()

    def read(self, **inputs) -> tuple[torch.Tensor, Any]:
        """Run the body on all texts; return their pooled states (batch, choices, hidden), and its outputs."""
        names = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds")
        texts = {name: inputs[name] for name in names if inputs[name] is not None}
        shape = next((tensor.shape[:3] for tensor in texts.values()), (1, 1, 1))
        for name, tensor in texts.items():
            check_shape(name, tensor, *shape)
        flat = {name: tensor.flatten(0, 1) for name, tensor in texts.items()}
        pooled, outputs = super().read(**inputs | flat)
        return pooled.unflatten(0, (-1, shape[1])), outputs

    def compute_logits(self, states: torch.Tensor) -> torch.Tensor:
        """Score each choice: (batch, choices, hidden) -> (batch, choices)."""
        return self.classifier(self.dropout(states))[..., 0]


class ReorderedBertForTokenClassification(EveryTokenHead):
    """A label for each token: (batch, length) -> (batch, length, labels).

    What is given as labels (batch, length) are class ids, or -100 for tokens that do not count.
    """

    output_class = TokenClassifierOutput

    def __init__(self, config: ReorderedBertConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.dropout = dropout(config, "classifier_dropout")
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)  # type: ignore[arg-type]
        self.post_init()

    def compute_logits(self, states: torch.Tensor) -> torch.Tensor:
        """Score each label: (batch, length, hidden) -> (batch, length, labels)."""
        return self.classifier(self.dropout(states))


class ReorderedBertForQuestionAnswering(EveryTokenHead):
    """Where an answer starts and ends in a text: (batch, length) -> twice (batch, length)."""

    output_class = TokenClassifierOutput

    def __init__(self, config: ReorderedBertConfig):
        super().__init__(config)
        self.dropout = dropout(config, "qa_dropout")
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    def compute_logits(self, states: torch.Tensor) -> torch.Tensor:
        """Score each token as the first and as the last one: (batch, length, hidden) -> (batch, length, 2)."""
        return self.qa_outputs(self.dropout(states))

    @can_return_tuple
    def forward(  # type: ignore[override]
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        start_positions: torch.Tensor | None = None,
        end_positions: torch.Tensor | None = None,
        **kwargs,
    ) -> QuestionAnsweringModelOutput:
        """Score every token as first and as last one of the answer; padding gets the lowest number there is.

        Positions (batch) outside the text mark answers that were cut off, and do not count.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = super().forward(*inputs, return_dict=True, **kwargs)
        logits = outputs.logits
        if attention_mask is not None and attention_mask.ndim == 2:
            # otherwise padding would take part in the softmax of the loss
            logits = logits.masked_fill(attention_mask[..., None] == 0, torch.finfo(logits.dtype).min)
        start_logits, end_logits = logits.unbind(-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            loss = (span_loss(start_logits, start_positions) + span_loss(end_logits, end_positions)) / 2
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start_logits,
            end_logits=end_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


def span_loss(logits: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of positions (batch) under logits (batch, length), without positions outside of the text."""
    positions = positions.view(-1)
    inside = (positions >= 0) & (positions < logits.shape[1])
    return mean_cross_entropy(logits, torch.where(inside, positions, IGNORED))

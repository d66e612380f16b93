"""The fine-tuning heads of the BERT-like families, over any order of sublayers."""

import torch
from torch import nn
from transformers.modeling_outputs import (
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.utils.generic import can_return_tuple

from sublayers.configuration.configuration_reordered_bert import ReorderedBertConfig
from sublayers.modeling.embeddings import check_shape
from sublayers.modeling.heads import read_body
from sublayers.modeling.losses import IGNORED, classification_loss, mean_cross_entropy
from sublayers.modeling.modeling_reordered_bert import ReorderedBertModel, ReorderedBertPreTrainedModel, read_pooled


def classifier_dropout(config: ReorderedBertConfig) -> nn.Dropout:
    """Make the dropout before a classifier."""
    return nn.Dropout(config.dropout if config.classifier_dropout is None else config.classifier_dropout)


class ReorderedBertForSequenceClassification(ReorderedBertPreTrainedModel):
    """Labels of a text or a pair of texts: (batch, length) -> (batch, labels)."""

    def __init__(self, config: ReorderedBertConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = ReorderedBertModel(config)
        self.dropout = classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)  # type: ignore[arg-type]
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
    ) -> SequenceClassifierOutput:
        """Classify: class ids (batch), several labels (batch, labels) or numbers, by `config.problem_type`."""
        pooled, outputs = read_pooled(
            self,
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        logits = self.classifier(self.dropout(pooled))
        return SequenceClassifierOutput(
            loss=None if labels is None else classification_loss(logits, labels, self.config, num_items_in_batch),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class ReorderedBertForMultipleChoice(ReorderedBertPreTrainedModel):
    """Which of several texts is right: (batch, choices, length) -> (batch, choices)."""

    def __init__(self, config: ReorderedBertConfig):
        super().__init__(config)
        self.model = ReorderedBertModel(config)
        self.dropout = classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, 1)
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
    ) -> MultipleChoiceModelOutput:
        """Score each choice; all inputs have a dimension for the choices, labels (batch) are their numbers."""
        inputs = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
            "position_ids": position_ids,
            "inputs_embeds": inputs_embeds,
        }
        shape = next((tensor.shape[:3] for tensor in inputs.values() if tensor is not None), (1, 1, 1))
        for name, tensor in inputs.items():
            check_shape(name, tensor, *shape)
        flat = {name: None if tensor is None else tensor.flatten(0, 1) for name, tensor in inputs.items()}
        pooled, outputs = read_pooled(self, **flat, **kwargs)
        logits = self.classifier(self.dropout(pooled)).view(-1, shape[1])
        return MultipleChoiceModelOutput(
            loss=None if labels is None else mean_cross_entropy(logits, labels.view(-1), num_items_in_batch),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class ReorderedBertForTokenClassification(ReorderedBertPreTrainedModel):
    """A label for each token: (batch, length) -> (batch, length, labels)."""

    def __init__(self, config: ReorderedBertConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = ReorderedBertModel(config, add_pooling_layer=False)
        self.dropout = classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)  # type: ignore[arg-type]
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
    ) -> TokenClassifierOutput:
        """Classify every token; labels (batch, length) are class ids, or -100 for tokens that do not count."""
        hidden_states, outputs = read_body(
            self,
            0,
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        logits = self.classifier(self.dropout(hidden_states))
        loss = None
        if labels is not None:
            loss = mean_cross_entropy(logits.flatten(0, 1), labels.flatten(), num_items_in_batch)
        return TokenClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class ReorderedBertForQuestionAnswering(ReorderedBertPreTrainedModel):
    """Where an answer starts and ends in a text: (batch, length) -> twice (batch, length)."""

    def __init__(self, config: ReorderedBertConfig):
        super().__init__(config)
        self.model = ReorderedBertModel(config, add_pooling_layer=False)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
    def forward(
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

        Positions (batch) outside the text, which mark answers that were cut off, count nowhere.
        """
        hidden_states, outputs = read_body(
            self,
            0,
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        logits = self.qa_outputs(hidden_states)
        if attention_mask is not None and attention_mask.ndim == 2:
            # or else padding would take part in the softmax of the loss
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

"""The head of an encoder-decoder that writes text, and what its generation shares between beams."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import EncoderDecoderCache, GenerationMixin
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput
from transformers.utils.generic import can_return_tuple
from transformers.utils.import_utils import is_tracing

from sublayers.configuration.configuration_reordered_seq2seq import ReorderedSeq2SeqConfig
from sublayers.modeling.embeddings import check_shape, given, number_positions
from sublayers.modeling.losses import IGNORED, mean_cross_entropy
from sublayers.modeling.modeling_reordered_seq2seq import ReorderedSeq2SeqModel, ReorderedSeq2SeqPreTrainedModel


def up_to_last(labelled: torch.Tensor) -> torch.Tensor:
    """Hide what stands behind the last label of each row, and so changes no score: (batch, length)."""
    return labelled.flip(1).cummax(1).values.flip(1)


@dataclass
class LabelledSeq2SeqLMOutput(Seq2SeqLMOutput):
    """Scores; in training with labels, those of the labelled tokens alone (labelled in all, vocabulary)."""

    labelled_logits: torch.Tensor | None = None


class ReorderedSeq2SeqForConditionalGeneration(ReorderedSeq2SeqPreTrainedModel, GenerationMixin):
    """The encoder-decoder with scores for each next token: (batch, source length) -> (batch, length, vocabulary)."""

    model_class: type[ReorderedSeq2SeqModel] = ReorderedSeq2SeqModel
    output_class: type[LabelledSeq2SeqLMOutput] = LabelledSeq2SeqLMOutput
    # what generation has once for all candidates of a source
    inputs_of_sources: tuple[str, ...] = ("encoder_outputs", "attention_mask")
    _tp_plan = {"lm_head": "colwise_gather_output"}

    def __init__(self, config: ReorderedSeq2SeqConfig):
        super().__init__(config)
        self.model = self.model_class(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=config.output_bias)
        if config.tie_word_embeddings:
            side = "encoder" if config.share_encoder_decoder_embeddings else "decoder"
            self._tied_weights_keys = {"lm_head.weight": f"model.{side}.embed_tokens.weight"}
        self.post_init()

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """Shift labels (batch, length) one place to the right, behind the token that starts every target.

        Raises:
            ValueError: the configuration does not name that token or the padding.
        """
        start, padding = self.config.decoder_start_token_id, self.config.pad_token_id
        if start is None or padding is None:
            raise ValueError(f"decoder_start_token_id={start} and pad_token_id={padding} must be numbers; set them")
        ids = torch.full_like(labels, start)
        ids[:, 1:] = labels[:, :-1]
        return ids.masked_fill(ids == IGNORED, padding)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        decoder_position_ids: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[torch.Tensor, ...] | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs,
    ) -> LabelledSeq2SeqLMOutput:
        """Score the next token at each target position; without decoder inputs they are the labels, shifted.

        The loss is label-smoothed as `config.label_smoothing` says. In training with labels there are no `logits`, only
        `labelled_logits`, (labelled in all, vocabulary), since nothing else is computed.
        """
        padding_mask = None
        if labels is not None:
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
            check_shape("labels", labels, *given(decoder_input_ids, decoder_inputs_embeds, prefix="decoder_").shape[:2])
            labelled = labels != IGNORED
            if self.training:
                padding_mask = up_to_last(labelled)
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            decoder_position_ids=decoder_position_ids,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            padding_mask=padding_mask,
            return_dict=True,
            **kwargs,
        )
        hidden_states, loss = outputs.last_hidden_state, None
        name = "logits"
        if labels is not None and self.training and not is_tracing(labels):
            name, hidden_states, labels = "labelled_logits", hidden_states[labelled], labels[labelled]
        logits = self.lm_head(hidden_states)
        if labels is not None:
            smoothing = self.config.label_smoothing
            loss = mean_cross_entropy(logits.flatten(0, -2), labels.flatten(), num_items_in_batch, smoothing)
        rest = {name: value for name, value in outputs.items() if name != "last_hidden_state"}
        return self.output_class(loss=loss, **{name: logits}, **rest)

    def prepare_inputs_for_generation(self, input_ids: torch.LongTensor, *args, **kwargs) -> dict[str, Any]:
        """Add positions, which a cache cannot tell where the target is padded or there is no self-attention."""
        inputs = super().prepare_inputs_for_generation(input_ids, *args, **kwargs)  # type: ignore[misc]
        if "decoder_position_ids" not in inputs:
            limit, mask = self.config.max_position_embeddings, kwargs.get("decoder_attention_mask")
            position_ids = number_positions(input_ids.shape[1], limit, mask, input_ids.device)
            inputs["decoder_position_ids"] = position_ids[:, -inputs["decoder_input_ids"].shape[1] :]
        return inputs

    def _expand_inputs_for_generation(  # type: ignore[misc]
        self, expand_size=1, is_encoder_decoder=False, input_ids=None, **model_kwargs
    ):
        # all candidates of a source share its states, and the keys and values made from them
        shared = {name: model_kwargs.pop(name) for name in self.inputs_of_sources if name in model_kwargs}
        expand = super()._expand_inputs_for_generation  # type: ignore[misc]
        input_ids, model_kwargs = expand(expand_size, False, input_ids, **model_kwargs)
        return input_ids, model_kwargs | shared

    def _reorder_cache(self, past_key_values: EncoderDecoderCache, beam_idx: torch.LongTensor) -> EncoderDecoderCache:
        # beams trade places within their source
        past_key_values.self_attention_cache.reorder_cache(beam_idx)
        return past_key_values

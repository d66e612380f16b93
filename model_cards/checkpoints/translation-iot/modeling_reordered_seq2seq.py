"""Encoder-decoders whose two stacks run any order of sublayers.

Vaswani et al. (2017), "Attention Is All You Need".
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache, EncoderDecoderCache
from transformers.masking_utils import create_masks_for_generate
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
    Seq2SeqSequenceClassifierOutput,
)
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.import_utils import is_tracing
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .configuration_reordered_seq2seq import ReorderedSeq2SeqConfig
from .order import Order
from .parallel_plans import expert_parallel_plan, tensor_parallel_plan
from .body import Body
from .embeddings import check_shape, check_tokens, number_positions
from .heads import CheckedGenerationMixin, last_tokens, positions_to_read
from .losses import IGNORED, classification_loss, mean_cross_entropy
from .mixers_attention import SelfAttention
from .mixers_cross_attention import CrossAttention
from .mixers_mixer import Source
from .modeling_sublayers import SublayersPreTrainedModel, hidden_state_recorder
from .norm import hidden_norm
from .plan import Plan, select_positions


class ReorderedSeq2SeqPreTrainedModel(SublayersPreTrainedModel):
    """Base of the encoder-decoder models."""

    config: ReorderedSeq2SeqConfig

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """Say which weights are tied, by the two fields of the configuration."""
        if all_submodels or not self._tied_weights_keys:
            return super().get_expanded_tied_weights_keys(all_submodels)
        return dict(self._tied_weights_keys)

    @staticmethod
    def create_masks_for_generate(config, attention_mask, **inputs):
        """Make the mask for static caches ahead, except for local attention, whose mask differs."""
        if config.attention_window is not None:
            return attention_mask
        return create_masks_for_generate(config=config, attention_mask=attention_mask, **inputs)

    def resize_token_embeddings(self, new_num_tokens=None, pad_to_multiple_of=None, mean_resizing=True) -> nn.Embedding:
        """Give source, target and output another number of tokens.

        Raises:
            ValueError: source and target have vocabularies of their own.
        """
        resizing = new_num_tokens is not None or pad_to_multiple_of is not None
        if resizing and not self.config.share_encoder_decoder_embeddings:
            if self.config.encoder_vocab_size is not None:
                raise ValueError("source and target have vocabularies of their own; build a new model for larger ones")
            decoder: Any = self.base_model.decoder
            decoder.embed_tokens = self._get_resized_embeddings(
                decoder.embed_tokens, new_num_tokens, pad_to_multiple_of, mean_resizing
            )
        return super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)


class ReorderedSeq2SeqStack(ReorderedSeq2SeqPreTrainedModel, Body):
    """What encoder and decoder share."""

    def __init__(self, config: ReorderedSeq2SeqConfig, orders: list[Order], vocab_size: int, is_causal: bool):
        words = nn.Embedding(vocab_size, config.hidden_size)
        norm = hidden_norm(config) if config.embedding_norm else None
        super().__init__(config, orders, is_causal, embed_tokens=words, embed_norm=norm)
        self.post_init()
        self._tp_plan = tensor_parallel_plan(config, orders[0])
        self._ep_plan = expert_parallel_plan(orders[0])


class ReorderedSeq2SeqEncoder(ReorderedSeq2SeqStack):
    """Source tokens to states that know both sides: (batch, length) -> (batch, length, hidden)."""

    _can_record_outputs = {
        "hidden_states": hidden_state_recorder("num_encoder_sublayers"),
        "attentions": OutputRecorder(SelfAttention, index=1),
    }

    def __init__(self, config: ReorderedSeq2SeqConfig):
        vocab_size = config.encoder_vocab_size or config.vocab_size
        super().__init__(config, config.stack_orders[0], vocab_size, is_causal=False)

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        # not by the name of kwargs, to which generation passes all that it got, labels too
        **options,
    ) -> BaseModelOutput:
        """Run the encoder.

        Raises:
            ValueError: neither or both of `input_ids` and `inputs_embeds`, ids outside the vocabulary, or a source
                longer than `max_position_embeddings`.
        """
        tokens = check_tokens(input_ids, inputs_embeds, attention_mask)
        if inputs_embeds is None:
            inputs_embeds = self.look_up_tokens(tokens)
        plan = Plan.of(tokens, attention_mask, is_recorded=self.is_recorded(**options))
        batch = self.batch(inputs_embeds, plan, attention_mask)
        hidden_states = self.layers(self.embed(batch), batch, **options)
        return BaseModelOutput(last_hidden_state=self.norm(hidden_states))


class ReorderedSeq2SeqDecoder(ReorderedSeq2SeqStack):
    """Target tokens to states that know what comes before and the source: (batch, length) -> (batch, length, hidden).

    Rows of the batch that follow each other may share a row of the source, as beams do.
    """

    _can_record_outputs = {
        "hidden_states": hidden_state_recorder("num_decoder_sublayers"),
        "attentions": OutputRecorder(SelfAttention, index=1),
        "cross_attentions": OutputRecorder(CrossAttention, index=1),
    }

    def __init__(self, config: ReorderedSeq2SeqConfig):
        super().__init__(config, config.stack_orders[1], config.vocab_size, is_causal=True)

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        encoder_hidden_states: torch.Tensor,
        encoder_attention_mask: torch.Tensor | None = None,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        cache: EncoderDecoderCache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        padding_mask: torch.Tensor | None = None,
        **kwargs,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Run the decoder; positions that `padding_mask` (batch, length) hides, by default padding, are not computed.

        Raises:
            ValueError: neither or both of `input_ids` and `inputs_embeds`, ids outside the vocabulary, a target longer
                than `max_position_embeddings`, or a batch that is no multiple of the source's.
        """
        tokens = check_tokens(input_ids, inputs_embeds, attention_mask, cache, "decoder_")
        check_shape("attention_mask", encoder_attention_mask, *encoder_hidden_states.shape[:2])
        if inputs_embeds is None:
            inputs_embeds = self.look_up_tokens(tokens, "decoder_input_ids")
        rows, sources = tokens.shape[0], encoder_hidden_states.shape[0]
        if rows % sources:
            raise ValueError(f"{rows} target rows cannot share {sources} source rows; give as many or a multiple")
        if use_cache and cache is None and not self.training:
            cache = EncoderDecoderCache(self.new_cache(), DynamicCache())
        # an empty cache counts as false
        self_cache = None if cache is None else cache.self_attention_cache
        padding_mask = attention_mask if padding_mask is None else padding_mask
        plan = Plan.of(tokens, padding_mask, is_recorded=self.is_recorded(**kwargs))
        source = Source(encoder_hidden_states, encoder_attention_mask, cache)
        batch = self.batch(inputs_embeds, plan, attention_mask, position_ids, self_cache, source)
        hidden_states = self.layers(self.embed(batch, name="decoder_position_ids"), batch, **kwargs)
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=self.norm(hidden_states), cache=cache if use_cache else None
        )


class ReorderedSeq2SeqModel(ReorderedSeq2SeqPreTrainedModel):
    """Encoder and decoder: (batch, source length), (batch, length) -> (batch, length, hidden)."""

    encoder_class: type[ReorderedSeq2SeqEncoder] = ReorderedSeq2SeqEncoder
    decoder_class: type[ReorderedSeq2SeqDecoder] = ReorderedSeq2SeqDecoder

    def __init__(self, config: ReorderedSeq2SeqConfig):
        super().__init__(config)
        self.encoder = self.encoder_class(config)
        self.decoder = self.decoder_class(config)
        if config.share_encoder_decoder_embeddings:
            self._tied_weights_keys = {"decoder.embed_tokens.weight": "encoder.embed_tokens.weight"}
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """Return the source's embeddings."""
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding):  # type: ignore[override]
        """Replace the source's embeddings and, where they are shared, the target's."""
        self.encoder.embed_tokens = value
        if self.config.share_encoder_decoder_embeddings:
            self.decoder.embed_tokens = value

    def look_up_both(
        self,
        source: torch.Tensor | None,
        target: torch.Tensor | None,
        source_embeds: torch.Tensor | None,
        target_embeds: torch.Tensor | None,
    ) -> tuple[torch.Tensor | None, ...]:
        """Turn ids of both sides into embeddings, if they share them and both are given.

        At once, since the gradient of each look-up is as large as the table, which matters in training only.
        """
        shared = self.training and self.config.share_encoder_decoder_embeddings
        if not shared or source is None or target is None:
            return source, target, source_embeds, target_embeds
        ids = torch.cat([source.flatten(), target.flatten()])
        embeds = self.encoder.look_up_tokens(ids, "input_ids and decoder_input_ids").split(
            [source.numel(), target.numel()]
        )
        return None, None, embeds[0].unflatten(0, source.shape), embeds[1].unflatten(0, target.shape)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        decoder_position_ids: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[torch.Tensor, ...] | None = None,
        cache: EncoderDecoderCache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        padding_mask: torch.Tensor | None = None,
        **kwargs,
    ) -> Seq2SeqModelOutput:
        """Run the encoder, unless its outputs are given, and the decoder, see there. Raises what they raise."""
        encoded = encoder_outputs
        if encoded is None:
            input_ids, decoder_input_ids, inputs_embeds, decoder_inputs_embeds = self.look_up_both(
                input_ids, decoder_input_ids, inputs_embeds, decoder_inputs_embeds
            )
            encoded = self.encoder(input_ids, attention_mask, inputs_embeds, return_dict=True, **kwargs)
        elif isinstance(encoded, tuple):
            encoded = BaseModelOutput(*encoded)  # type: ignore[arg-type]
        outputs = self.decoder(
            encoded.last_hidden_state,
            attention_mask,
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            position_ids=decoder_position_ids,
            cache=cache,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            padding_mask=padding_mask,
            return_dict=True,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=outputs.last_hidden_state,
            cache=outputs.cache,
            decoder_hidden_states=outputs.hidden_states,
            decoder_attentions=outputs.attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=encoded.last_hidden_state,
            encoder_hidden_states=encoded.hidden_states,
            encoder_attentions=encoded.attentions,
        )


def up_to_last(labelled: torch.Tensor) -> torch.Tensor:
    """Hide what stands after the last label of each row, and so changes no score: (batch, length)."""
    return labelled.flip(1).cummax(1).values.flip(1)


@dataclass
class LabelledSeq2SeqLMOutput(Seq2SeqLMOutput):
    """Scores; in training with labels, those of the labelled tokens alone (labelled in all, vocabulary)."""

    labelled_logits: torch.Tensor | None = None


class ReorderedSeq2SeqForConditionalGeneration(ReorderedSeq2SeqPreTrainedModel, CheckedGenerationMixin):
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
        """Shift labels (batch, length) one place to the right, after the token that starts every target.

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
        cache: EncoderDecoderCache | None = None,
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
            check_shape(
                "labels", labels, *check_tokens(decoder_input_ids, decoder_inputs_embeds, prefix="decoder_").shape[:2]
            )
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
            cache=cache,
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

    def prepare_inputs_for_generation(self, input_ids: torch.Tensor, *args, **kwargs) -> dict[str, Any]:
        """Add positions, which a cache cannot tell where the target is padded or there is no self-attention."""
        inputs = super().prepare_inputs_for_generation(input_ids, *args, **kwargs)  # type: ignore[misc]
        if "decoder_position_ids" not in inputs:
            limit, mask = self.config.position_limit, kwargs.get("decoder_attention_mask")
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

    def _reorder_cache(self, cache: EncoderDecoderCache, beam_idx: torch.LongTensor) -> EncoderDecoderCache:
        # beams trade places within their source
        cache.self_attention_cache.reorder_cache(beam_idx)
        return cache


class ReorderedSeq2SeqForSequenceClassification(ReorderedSeq2SeqPreTrainedModel):
    """Labels of a text or a pair of texts: (batch, source length) -> (batch, labels).

    Encoder and decoder read the same text, and the labels are read off the decoder's last token (Lewis et al., 2020,
    "BART: Denoising Sequence-to-Sequence Pre-training", section 3.1).

    Raises:
        ValueError: source and target have vocabularies of their own.
    """

    model_class: type[ReorderedSeq2SeqModel] = ReorderedSeq2SeqModel

    def __init__(self, config: ReorderedSeq2SeqConfig):
        super().__init__(config)
        if config.encoder_vocab_size not in (None, config.vocab_size):
            raise ValueError(
                f"encoder_vocab_size={config.encoder_vocab_size} is a vocabulary of its own, but encoder and decoder "
                "read the text that is classified; give a model with one vocabulary"
            )
        self.num_labels = config.num_labels
        self.model = self.model_class(config)
        self.score = nn.Linear(config.hidden_size, config.num_labels)  # type: ignore[arg-type]
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        decoder_position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[torch.Tensor, ...] | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs,
    ) -> Seq2SeqSequenceClassifierOutput:
        """Classify: class ids (batch), several labels (batch, labels) or numbers, by `config.problem_type`.

        The decoder reads the source, unless it gets a target of its own.
        """
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            decoder_input_ids, decoder_inputs_embeds = input_ids, inputs_embeds
            decoder_attention_mask = attention_mask
        tokens = check_tokens(decoder_input_ids, decoder_inputs_embeds, decoder_attention_mask, prefix="decoder_")
        last = last_tokens(tokens, decoder_attention_mask, self.config.pad_token_id)
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            decoder_position_ids=decoder_position_ids,
            encoder_outputs=encoder_outputs,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            return_dict=True,
            **kwargs | {"use_cache": False},
        )
        states, read = outputs.last_hidden_state, positions_to_read(last, tokens.shape[1], tokens.device)
        logits = self.score(states[:, -1] if read is None else select_positions(states, read)[:, 0])
        loss = None if labels is None else classification_loss(logits, labels, self.config, num_items_in_batch)
        rest = {
            name: value for name, value in outputs.items() if name in Seq2SeqSequenceClassifierOutput.__annotations__
        }
        return Seq2SeqSequenceClassifierOutput(loss=loss, logits=logits, **rest)

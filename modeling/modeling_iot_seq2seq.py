"""The encoder-decoder that chooses the order of its sublayers for each sentence.

Zhu et al. (2021), "IOT: Instance-wise Layer Reordering for Transformer Structures".
"""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache, EncoderDecoderCache, initialization as init
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    ModelOutput,
    Seq2SeqModelOutput,
)
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.import_utils import is_tracing

from sublayers.configuration.configuration_iot_seq2seq import IOTSeq2SeqConfig
from sublayers.modeling.embeddings import check_shape, given
from sublayers.modeling.modeling_reordered_seq2seq import (
    ReorderedSeq2SeqDecoder,
    ReorderedSeq2SeqEncoder,
    ReorderedSeq2SeqModel,
)
from sublayers.modeling.order_choice import (
    Order,
    OrderPredictor,
    choose,
    drop_blocks,
    mean_state,
    part_of,
    run_rows,
    select_rows,
    spread,
)


@dataclass
class IOTEncoderOutput(BaseModelOutput):
    """An encoder's output with the chosen orders (batch,), and their scores (batch, orders) if they are predicted.

    Orders are positions in `config.encoder_orders` and `config.decoder_orders`.
    """

    encoder_order: torch.Tensor | None = None
    decoder_order: torch.Tensor | None = None
    encoder_order_logits: torch.Tensor | None = None
    decoder_order_logits: torch.Tensor | None = None


@dataclass
class IOTSeq2SeqModelOutput(Seq2SeqModelOutput):
    """An encoder-decoder's output with the orders (sources,) that it ran, see `IOTEncoderOutput`."""

    encoder_order: torch.Tensor | None = None
    decoder_order: torch.Tensor | None = None


class IOTSeq2SeqEncoder(ReorderedSeq2SeqEncoder):
    """Source tokens to states in the order that suits each sentence: (batch, length) -> (batch, length, hidden).

    It predicts the decoder's order, too.
    """

    config: IOTSeq2SeqConfig

    def __init__(self, config: IOTSeq2SeqConfig):
        super().__init__(config)
        encoder_orders, decoder_orders = config.num_predicted_orders
        if encoder_orders:
            self.encoder_order_predictor = OrderPredictor(config.hidden_size, encoder_orders, config.predictor_dropout)
        if decoder_orders:
            self.decoder_order_predictor = OrderPredictor(config.hidden_size, decoder_orders, config.predictor_dropout)

    def _init_weights(self, module):
        super()._init_weights(module)
        if isinstance(module, OrderPredictor):
            init.normal_(module.weight, std=self.config.hidden_size**-0.5)

    def score_decoder_orders(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None
    ) -> torch.Tensor | None:
        """Score the decoder's orders by the mean of the final states (batch, length, hidden): (batch, orders).

        None where they are not predicted.
        """
        if not self.config.num_predicted_orders[1]:
            return None
        return self.decoder_order_predictor(mean_state(hidden_states, attention_mask))

    @can_return_tuple
    def forward(  # type: ignore[override]
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        forced_encoder_order: Order | None = None,
        forced_decoder_order: Order | None = None,
        **kwargs,
    ) -> IOTEncoderOutput:
        """Run the encoder, each row in the order that is predicted from its mean token, or forced.

        Raises:
            ValueError: a forced order that there is not, or what every encoder refuses.
        """
        config = self.config
        tokens = given(input_ids, inputs_embeds, attention_mask)
        if inputs_embeds is None:
            inputs_embeds = self.look_up_tokens(tokens, "input_ids")
        batch, device = tokens.shape[0], tokens.device
        logits = None
        if config.num_predicted_orders[0]:
            means = mean_state(inputs_embeds * self.embed_scale, attention_mask)
            logits = self.encoder_order_predictor(means)
        order = choose(forced_encoder_order, logits, config.encoder_orders, batch)
        inputs = {"inputs_embeds": inputs_embeds, "attention_mask": attention_mask, "return_dict": True, **kwargs}

        def run(number: int, rows: torch.Tensor | None) -> ModelOutput:
            dropped = drop_blocks(config.layerdrop * self.training, config.num_encoder_blocks, len(self.layers))
            selected = inputs if rows is None else select_rows(inputs, rows, batch)
            return super(IOTSeq2SeqEncoder, self).forward(**selected, order=number, dropped=dropped)

        outputs = run_rows(order, len(config.encoder_orders), run, is_tracing(inputs_embeds))
        decoder_logits = self.score_decoder_orders(outputs["last_hidden_state"], attention_mask)
        decoder_order = choose(forced_decoder_order, decoder_logits, config.decoder_orders, batch)
        return IOTEncoderOutput(
            **outputs,
            encoder_order=spread(order, batch, device),
            decoder_order=spread(decoder_order, batch, device),
            encoder_order_logits=logits,
            decoder_order_logits=decoder_logits,
        )


class IOTSeq2SeqDecoder(ReorderedSeq2SeqDecoder):
    """Target tokens to states in the order of each source: (batch, length) -> (batch, length, hidden)."""

    config: IOTSeq2SeqConfig

    @merge_with_config_defaults
    @can_return_tuple
    def forward(  # type: ignore[override]
        self,
        encoder_hidden_states: torch.Tensor,
        encoder_attention_mask: torch.Tensor | None = None,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        use_cache: bool | None = None,
        order: Order = 0,
        **kwargs,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Run the decoder in one order, or in one for each source (sources,), with a cache for the rows of each order.

        Raises:
            ValueError: a cache that was filled when all rows had one order, or what every decoder refuses.
        """
        config = self.config
        tokens = given(input_ids, inputs_embeds, attention_mask, past_key_values, "decoder_")
        check_shape("attention_mask", encoder_attention_mask, *encoder_hidden_states.shape[:2])
        batch, sources = tokens.shape[0], encoder_hidden_states.shape[0]
        of_sources = {
            "encoder_hidden_states": encoder_hidden_states,
            "encoder_attention_mask": encoder_attention_mask,
        }
        of_targets = {"input_ids": input_ids, "inputs_embeds": inputs_embeds, "attention_mask": attention_mask} | kwargs
        dense, cache = False, past_key_values
        if isinstance(order, torch.Tensor):
            order = order.repeat_interleave(batch // sources)
            dense = is_tracing(tokens) and cache is None
            use_cache = use_cache and not dense
            if use_cache and cache is None and not self.training:
                cache = EncoderDecoderCache(DynamicCache(), DynamicCache())

        def run(number: int, rows: torch.Tensor | None) -> ModelOutput:
            dropped = drop_blocks(config.layerdrop * self.training, config.num_decoder_blocks, len(self.layers))
            inputs, part = of_sources | of_targets, cache
            if rows is not None:
                # all rows of a source stand together
                source_rows = rows[:: batch // sources] // (batch // sources)
                inputs = select_rows(of_sources, source_rows, sources) | select_rows(of_targets, rows, batch)
                part = None if cache is None else part_of(cache, number, rows)
            return super(IOTSeq2SeqDecoder, self).forward(
                **inputs, past_key_values=part, use_cache=use_cache, order=number, dropped=dropped, return_dict=True
            )

        outputs = run_rows(order, len(config.decoder_orders), run, dense)
        if use_cache and cache is not None:
            outputs["past_key_values"] = cache
        return outputs  # type: ignore[return-value]


class IOTSeq2SeqModel(ReorderedSeq2SeqModel):
    """See `ReorderedSeq2SeqModel`; every sentence is encoded and decoded in its own order."""

    config: IOTSeq2SeqConfig
    encoder: IOTSeq2SeqEncoder
    encoder_class = IOTSeq2SeqEncoder
    decoder_class = IOTSeq2SeqDecoder

    @can_return_tuple
    def forward(  # type: ignore[override]
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
        use_cache: bool | None = None,
        padding_mask: torch.Tensor | None = None,
        forced_encoder_order: Order | None = None,
        forced_decoder_order: Order | None = None,
        **kwargs,
    ) -> IOTSeq2SeqModelOutput:
        """Run the encoder, unless its outputs are given, and the decoder, each row in its predicted or forced order.

        Raises what they raise.
        """
        encoded: Any = encoder_outputs
        if encoded is None:
            input_ids, decoder_input_ids, inputs_embeds, decoder_inputs_embeds = self.look_up_both(
                input_ids, decoder_input_ids, inputs_embeds, decoder_inputs_embeds
            )
            encoded = self.encoder(
                input_ids, attention_mask, inputs_embeds, forced_encoder_order, return_dict=True, **kwargs
            )
        elif isinstance(encoded, tuple):
            encoded = BaseModelOutput(encoded[0])
        states, scores = encoded.last_hidden_state, encoded.get("decoder_order_logits")
        if scores is None and forced_decoder_order is None:
            scores = self.encoder.score_decoder_orders(states, attention_mask)
        order = choose(forced_decoder_order, scores, self.config.decoder_orders, states.shape[0])
        outputs = super().forward(
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            decoder_position_ids=decoder_position_ids,
            encoder_outputs=encoded,
            past_key_values=past_key_values,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            padding_mask=padding_mask,
            order=order,
            return_dict=True,
            **kwargs,
        )
        return IOTSeq2SeqModelOutput(
            **outputs,
            encoder_order=encoded.get("encoder_order"),
            decoder_order=spread(order, states.shape[0], states.device),
        )

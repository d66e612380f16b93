from .versions import TRANSFORMERS  # noqa: F401

"""The encoder-decoder that chooses the order of its sublayers for each sentence.

Zhu et al. (2021), "IOT: Instance-wise Layer Reordering for Transformer Structures".
"""

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache, EncoderDecoderCache, GenerationConfig, initialization as init
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    ModelOutput,
    Seq2SeqModelOutput,
)
from transformers.utils.generic import can_return_tuple
from transformers.utils.import_utils import is_tracing

from .configuration_iot_seq2seq import IOTSeq2SeqConfig
from .order import Order
from .body import Body
from .embeddings import check_shape, check_tokens
from .instance_wise_stack import InstanceWiseStack
from .losses import IGNORED, weighted_cross_entropy
from .modeling_reordered_seq2seq import (
    LabelledSeq2SeqLMOutput,
    ReorderedSeq2SeqDecoder,
    ReorderedSeq2SeqEncoder,
    ReorderedSeq2SeqForConditionalGeneration,
    ReorderedSeq2SeqForSequenceClassification,
    ReorderedSeq2SeqModel,
    up_to_last,
)
from .order_choice import (
    OrderNumber,
    OrderPredictor,
    OrderStatistics,
    auxiliary_losses,
    choose_order,
    confidences,
    order_of_each_row,
    run_rows,
)
from .plan import mean_state

# updates from one temperature to the next
ANNEALING_STEPS = 5000


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


@dataclass
class IOTSeq2SeqLMOutput(LabelledSeq2SeqLMOutput):
    """Scores with the orders (sources,) that were chosen, and in training the terms of the loss (), unweighted."""

    encoder_order: torch.Tensor | None = None
    decoder_order: torch.Tensor | None = None
    cross_entropy: torch.Tensor | None = None
    diversity: torch.Tensor | None = None
    sharpness: torch.Tensor | None = None


class InstanceWiseBody(Body):
    """What encoder and decoder share."""

    def make_stack(self, orders: list[Order]) -> InstanceWiseStack:
        """Make sublayers that run in any of the orders."""
        return InstanceWiseStack(self.config, orders, self.is_causal)


class IOTSeq2SeqEncoder(InstanceWiseBody, ReorderedSeq2SeqEncoder):
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

    def choose_decoder_order(
        self, outputs: ModelOutput | tuple, attention_mask: torch.Tensor | None, forced: OrderNumber | None
    ) -> IOTEncoderOutput:
        """Add the order that decodes final states: a forced one, one that is there already, or the best for their mean.

        Raises:
            ValueError: a forced order that there is not.
        """
        outputs = BaseModelOutput(outputs[0]) if isinstance(outputs, tuple) else outputs
        if forced is None and outputs.get("decoder_order") is not None:
            return outputs  # type: ignore[return-value]
        states, logits = outputs["last_hidden_state"], outputs.get("decoder_order_logits")
        if logits is None and self.config.num_predicted_orders[1]:
            logits = self.decoder_order_predictor(mean_state(states, attention_mask))
        order = choose_order(forced, logits, self.config.decoder_orders, states.shape[0])
        order = order_of_each_row(order, states.shape[0], states.device)
        return IOTEncoderOutput(**{**outputs, "decoder_order": order, "decoder_order_logits": logits})

    @can_return_tuple
    def forward(  # type: ignore[override]
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        forced_encoder_order: OrderNumber | None = None,
        forced_decoder_order: OrderNumber | None = None,
        **options,
    ) -> IOTEncoderOutput:
        """Run the encoder, each row in the order that is predicted from its mean token, or forced.

        Raises:
            ValueError: a forced order that there is not, or what every encoder refuses.
        """
        config = self.config
        tokens = check_tokens(input_ids, inputs_embeds, attention_mask)
        if inputs_embeds is None:
            inputs_embeds = self.look_up_tokens(tokens, "input_ids")
        batch, device = tokens.shape[0], tokens.device
        logits = None
        if config.num_predicted_orders[0]:
            means = mean_state(inputs_embeds * self.embed_scale, attention_mask)
            logits = self.encoder_order_predictor(means)
        order = choose_order(forced_encoder_order, logits, config.encoder_orders, batch)
        outputs = run_rows(
            self,
            super().forward,
            order,
            config.num_encoder_blocks,
            inputs_embeds=inputs_embeds,
            attention_mask=attention_mask,
            **options,
        )
        orders = order_of_each_row(order, batch, device)
        encoded = IOTEncoderOutput(**outputs, encoder_order=orders, encoder_order_logits=logits)
        return self.choose_decoder_order(encoded, attention_mask, forced_decoder_order)


class IOTSeq2SeqDecoder(InstanceWiseBody, ReorderedSeq2SeqDecoder):
    """Target tokens to states in the order of each source: (batch, length) -> (batch, length, hidden)."""

    config: IOTSeq2SeqConfig

    @can_return_tuple
    def forward(  # type: ignore[override]
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
        order: OrderNumber = 0,
        **kwargs,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Run the decoder in one order, or in one for each source (sources,).

        Raises what every decoder raises.
        """
        return run_rows(  # type: ignore[return-value]
            self,
            super().forward,
            order,
            self.config.num_decoder_blocks,
            encoder_hidden_states,
            encoder_attention_mask,
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            padding_mask=padding_mask,
            **kwargs,
        )


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
        cache: EncoderDecoderCache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        padding_mask: torch.Tensor | None = None,
        forced_encoder_order: OrderNumber | None = None,
        forced_decoder_order: OrderNumber | None = None,
        **kwargs,
    ) -> IOTSeq2SeqModelOutput:
        """Run the encoder, unless its outputs are given, and the decoder, each row in its predicted or forced order.

        Raises what they raise.
        """
        if forced_decoder_order is None and not self.config.num_predicted_orders[1]:
            forced_decoder_order = 0
        forced = {"forced_encoder_order": forced_encoder_order, "forced_decoder_order": forced_decoder_order}
        encoded: Any = encoder_outputs
        if encoded is None:
            input_ids, decoder_input_ids, inputs_embeds, decoder_inputs_embeds = self.look_up_both(
                input_ids, decoder_input_ids, inputs_embeds, decoder_inputs_embeds
            )
            encoded = self.encoder(input_ids, attention_mask, inputs_embeds, **forced, return_dict=True, **kwargs)
        else:
            encoded = self.encoder.choose_decoder_order(encoded, attention_mask, forced_decoder_order)
        # a graph that is traced can depend on a number only
        order = forced_decoder_order if isinstance(forced_decoder_order, int) else encoded["decoder_order"]
        outputs = super().forward(
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            decoder_position_ids=decoder_position_ids,
            encoder_outputs=encoded,
            cache=cache,
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
            decoder_order=encoded["decoder_order"],
        )


class IOTSeq2SeqForConditionalGeneration(ReorderedSeq2SeqForConditionalGeneration):
    """See `ReorderedSeq2SeqForConditionalGeneration`.

    Attributes:
        temperature: of the noise with which orders are weighted in training, see `anneal`.
        diversity_weight: c1 of equation 7, see `anneal`.
    """

    config: IOTSeq2SeqConfig
    model: IOTSeq2SeqModel
    model_class = IOTSeq2SeqModel
    output_class = IOTSeq2SeqLMOutput
    inputs_of_sources = ("encoder_outputs", "attention_mask", "forced_encoder_order", "forced_decoder_order")

    def __init__(self, config: IOTSeq2SeqConfig):
        super().__init__(config)
        self.anneal(0)

    def anneal(self, update: int) -> None:
        """Set the temperature, and the weight of the diversity loss, for a step after this number of updates."""
        config = self.config
        decay = math.exp(-config.gumbel_temperature_decay * (update - update % ANNEALING_STEPS))
        left = 1 - update / (config.diversity_decay_updates or math.inf)
        self.diversity_weight = config.diversity_weight * max(left, 0.0)
        self.temperature = max(config.gumbel_temperature * decay, float(config.gumbel_temperature_min))

    @can_return_tuple
    def forward(  # type: ignore[override]
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
        forced_encoder_order: OrderNumber | None = None,
        forced_decoder_order: OrderNumber | None = None,
        order_statistics: OrderStatistics | None = None,
        **kwargs,
    ) -> IOTSeq2SeqLMOutput:
        """Score the next token at each target position, each sentence in its predicted or forced order.

        Orders are positions in the configuration's lists, one for all or (sources,). In training with labels all
        orders run, and the loss is that of equation 7; `order_statistics` makes its terms exact where this is only a
        part of what a step learns from.

        Raises:
            ValueError: training without labels, or what encoder and decoder refuse.
        """
        targets = {
            "decoder_input_ids": decoder_input_ids,
            "decoder_attention_mask": decoder_attention_mask,
            "decoder_position_ids": decoder_position_ids,
            "decoder_inputs_embeds": decoder_inputs_embeds,
        }
        free = forced_encoder_order is None and forced_decoder_order is None and encoder_outputs is None
        if self.training and free and len(self.config.paths) > 1:
            if labels is None:
                raise ValueError(
                    "without labels the choice of orders learns nothing; give labels, and smooth them by "
                    "config.label_smoothing, since a Trainer that smooths keeps them to itself"
                )
            source = {"input_ids": input_ids, "attention_mask": attention_mask, "inputs_embeds": inputs_embeds}
            return self.train_orders(source, targets, labels, num_items_in_batch, order_statistics, **kwargs)
        return super().forward(  # type: ignore[return-value]
            input_ids,
            attention_mask=attention_mask,
            **targets,
            encoder_outputs=encoder_outputs,
            cache=cache,
            inputs_embeds=inputs_embeds,
            labels=labels,
            use_cache=use_cache,
            num_items_in_batch=num_items_in_batch,
            forced_encoder_order=forced_encoder_order,
            forced_decoder_order=forced_decoder_order,
            return_dict=True,
            **kwargs,
        )

    def train_orders(
        self,
        source: dict[str, Any],
        targets: dict[str, Any],
        labels: torch.Tensor,
        num_items_in_batch: torch.Tensor | int | None,
        order_statistics: OrderStatistics | None,
        **kwargs,
    ) -> IOTSeq2SeqLMOutput:
        """Run every path, and weight its loss for each sentence by the confidence in its orders (equations 3 and 7).

        `labelled_logits` are those of the labelled tokens, (paths, labelled in all, vocabulary), see `config.paths`.
        """
        config = self.config
        if targets["decoder_input_ids"] is None and targets["decoder_inputs_embeds"] is None:
            targets["decoder_input_ids"] = self.prepare_decoder_input_ids_from_labels(labels)
        ids, embeds, mask = (targets[f"decoder_{name}"] for name in ("input_ids", "inputs_embeds", "attention_mask"))
        tokens = check_tokens(ids, embeds, mask, prefix="decoder_")
        check_shape("labels", labels, *tokens.shape[:2])
        labelled = labels != IGNORED
        states, encoded = self.run_paths(source, targets, labelled, **kwargs)
        rows = torch.arange(labels.shape[0], device=labels.device)[:, None].expand_as(labels)
        if is_tracing(labels):
            states, labels, rows = states.flatten(1, 2), labels.flatten(), rows.flatten()
        else:
            states, labels, rows = states[:, labelled], labels[labelled], rows[labelled]
        logits = self.lm_head(states)
        num_labelled = labelled.sum().clamp(min=1)
        num_items = num_labelled if num_items_in_batch is None else num_items_in_batch
        weights, *losses = self.weigh(encoded, order_statistics)
        smoothing, share = config.label_smoothing, num_labelled / num_items if order_statistics is None else 1.0
        total = weighted_cross_entropy(logits, labels, weights[:, rows], smoothing, config.weighted_smoothing)
        cross_entropy, diversity, sharpness = total / num_items, share * losses[0], share * losses[1]

        batch, first = weights.shape[1], encoded[0]
        encoder_order = order_of_each_row(
            choose_order(None, first.encoder_order_logits, config.encoder_orders, batch), batch, labels.device
        )
        paired = config.order_paths == "paired"
        of_encoders = torch.stack([each["decoder_order"] for each in encoded[:: len(config.decoder_orders)]])
        return IOTSeq2SeqLMOutput(
            loss=cross_entropy + self.diversity_weight * diversity + config.sharpness_weight * sharpness,
            labelled_logits=logits,
            encoder_order=encoder_order,
            decoder_order=of_encoders[0] if paired else of_encoders[encoder_order, torch.arange(batch)],
            cross_entropy=cross_entropy.detach(),
            diversity=diversity.detach(),
            sharpness=sharpness.detach(),
        )

    def run_paths(
        self, source: dict[str, Any], targets: dict[str, Any], labelled: torch.Tensor, **kwargs
    ) -> tuple[torch.Tensor, list[IOTEncoderOutput]]:
        """Run encoder and decoder in every pair of orders, see `config.paths`.

        Returns:
            The decoder's states (paths, batch, length, hidden), and for each path the encoder's output.
        """
        config, model = self.config, self.model
        targets = {name.removeprefix("decoder_"): value for name, value in targets.items()}
        source["input_ids"], targets["input_ids"], source["inputs_embeds"], targets["inputs_embeds"] = (
            model.look_up_both(
                source["input_ids"], targets["input_ids"], source["inputs_embeds"], targets["inputs_embeds"]
            )
        )
        padding_mask = up_to_last(labelled)
        # recomputed sublayers would find a cache that is filled
        checkpointing = any(layer.gradient_checkpointing for layer in model.decoder.layers)
        states, encoded = [], []
        previous = None
        for encoder_order, decoder_order in config.paths:
            if encoder_order != previous or not config.shared_encoder:
                output = model.encoder(**source, forced_encoder_order=encoder_order, return_dict=True, **kwargs)
                # all decoders of an encoder share what cross-attention makes of its states
                cross_cache = DynamicCache()
                previous = encoder_order
            cache = None if checkpointing else EncoderDecoderCache(model.decoder.new_cache(), cross_cache)
            decoded = model.decoder(
                output.last_hidden_state,
                source["attention_mask"],
                **targets,
                cache=cache,
                use_cache=False,
                padding_mask=padding_mask,
                order=decoder_order,
                return_dict=True,
                **kwargs,
            )
            states.append(decoded.last_hidden_state)
            encoded.append(output)
        return torch.stack(states), encoded

    def weigh(
        self, encoded: list[IOTEncoderOutput], order_statistics: OrderStatistics | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Turn predictors' scores into the weights (paths, batch) of the paths, and into diversity and sharpness."""
        config, first = self.config, encoded[0]
        whole = order_statistics or OrderStatistics(None, None, None)
        weights = torch.ones((len(encoded), *first["decoder_order"].shape), device=first["decoder_order"].device)
        diversity = sharpness = weights.new_zeros(())
        if first.decoder_order_logits is not None:
            scores = torch.stack([output["decoder_order_logits"] for output in encoded])
            # the decoder's confidences belong to an encoder order or, where these are not predicted, to all passes
            groups = scores.unflatten(0, (-1, scores.shape[-1]))
            weights = torch.cat([confidences(group, config, self.temperature).T for group in groups])
            diversity, sharpness = auxiliary_losses(scores, config, whole.decoder_probabilities, whole.num_sentences)
        if first.encoder_order_logits is not None:
            scores = first.encoder_order_logits[None]
            of_encoders = confidences(scores, config, self.temperature).T
            weights = weights * of_encoders.repeat_interleave(len(config.decoder_orders), 0)
            more = auxiliary_losses(scores, config, whole.encoder_probabilities, whole.num_sentences)
            diversity, sharpness = diversity + more[0], sharpness + more[1]
        return weights, diversity, sharpness

    @torch.no_grad()
    def generate(  # type: ignore[override]
        self, inputs: torch.Tensor | None = None, generation_config: GenerationConfig | None = None, *args, **kwargs
    ) -> Any:
        """Generate, each source in its own order; see transformers' `generate`.

        Where it returns more than tokens, `encoder_order` and `decoder_order` (sources,) are among it. Its steps are
        compiled only if one order is forced on all.
        """
        forced = kwargs.get("forced_decoder_order")
        if isinstance(forced, torch.Tensor) or (forced is None and self.config.num_predicted_orders[1]):
            # a graph would make every row in every run, whatever its order
            if generation_config is None:
                kwargs["disable_compile"] = True
            else:
                # transformers wants settings in one place
                generation_config = copy.deepcopy(generation_config)
                generation_config.disable_compile = True
        encoder, mask, encoded = self.get_encoder(), kwargs.get("attention_mask"), kwargs.get("encoder_outputs")
        if encoded is None:
            names = ("input_ids", "attention_mask", "inputs_embeds", "forced_encoder_order", "forced_decoder_order")
            source = {name: kwargs.get(name) for name in names}
            if inputs is not None:
                source["input_ids"] = inputs
            settings, _ = self._prepare_generation_config(generation_config, **kwargs)  # type: ignore[misc]
            recorded = {name: getattr(settings, name) for name in ("output_attentions", "output_hidden_states")}
            encoded = encoder(**source, **recorded, return_dict=True)
        kwargs["encoder_outputs"] = encoded = encoder.choose_decoder_order(encoded, mask, forced)
        orders = {name: encoded[name] for name in ("encoder_order", "decoder_order") if name in encoded}
        generated = super().generate(inputs, generation_config, *args, **kwargs)  # type: ignore[misc]
        if isinstance(generated, ModelOutput):
            for name, order in orders.items():
                generated[name] = order
        return generated


class IOTSeq2SeqForSequenceClassification(ReorderedSeq2SeqForSequenceClassification):
    """See `ReorderedSeq2SeqForSequenceClassification`; each text runs in its predicted orders.

    The predictors are frozen: labels of texts teach them nothing, since only the losses of generation weigh orders.
    """

    config: IOTSeq2SeqConfig
    model: IOTSeq2SeqModel
    model_class = IOTSeq2SeqModel

    def __init__(self, config: IOTSeq2SeqConfig):
        super().__init__(config)
        for name, module in self.model.encoder.named_children():
            # what gets no gradient breaks training on several devices
            if name.endswith("order_predictor"):
                module.requires_grad_(False)


# transformers copies the files that a saved module imports; these lines name the whole family
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .configuration_iot_seq2seq import IOTSeq2SeqConfig
    from .text2text_generation import TranslationPipeline

"""The sandwich character model: attention of learned spans, over any order of sublayers.

Press, Smith and Levy (2020), "Improving Transformer Models by Reordering their Sublayers", section 5.2.
"""

import math
from typing import Any

import torch
from torch import nn
from transformers import Cache, initialization as init
from transformers.cache_utils import DynamicSlidingWindowLayer

from sublayers.configuration.configuration_sandwich_char_lm import SandwichCharLMConfig
from sublayers.modeling.losses import IGNORED
from sublayers.modeling.mixers.span_attention import DistanceKeys, SpanAttention
from sublayers.modeling.modeling_recurrent_lm import (
    RecurrentLMForCausalLM,
    RecurrentLMModel,
    RecurrentLMPreTrainedModel,
)


class SandwichCharLMPreTrainedModel(RecurrentLMPreTrainedModel):
    """Base of the sandwich character models."""

    config: SandwichCharLMConfig

    def span_attentions(self) -> list[SpanAttention]:
        """List the attentions, in their order."""
        return [module for module in self.modules() if isinstance(module, SpanAttention)]

    def _init_weights(self, module):
        super()._init_weights(module)
        # as the authors do
        if isinstance(module, nn.Linear):
            init.kaiming_uniform_(module.weight, a=math.sqrt(5))
            if module.bias is not None:
                bound = module.in_features**-0.5
                init.uniform_(module.bias, -bound, bound)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight)
        elif isinstance(module, DistanceKeys):
            init.normal_(module.table)
        elif isinstance(module, SpanAttention) and module.span is not None:
            init.constant_(module.span, self.config.initial_span_share)


class SandwichCharLMModel(SandwichCharLMPreTrainedModel, RecurrentLMModel):
    """The body of the sandwich character models."""

    has_one_length = False

    def __init__(self, config: SandwichCharLMConfig):
        super().__init__(config, nn.Embedding(config.vocab_size, config.hidden_size))
        self.register_forward_pre_hook(SandwichCharLMModel.clamp_spans)
        self.post_init()

    def clamp_spans(self, args: tuple = ()) -> None:
        """Clamp the shares to the range from 0 to 1, which an optimiser's step may have left."""
        # in evaluation there is nothing to clamp, and an exported program would keep the mode
        if not self.training:
            return
        with torch.no_grad():
            for attention in self.span_attentions():
                if attention.span is not None and attention.span.requires_grad:
                    attention.span.clamp_(0, 1)

    def empty_cache(self) -> Cache:
        """Make the cache of generation, in which each place has what the longest head of its sublayer reads."""
        mixers = [self.layers[step.sublayer].mixer for step in self.layers.steps]
        lengths = [mixer.read_length + 1 for mixer in mixers if isinstance(mixer, SpanAttention)]
        return Cache(layers=[*map(DynamicSlidingWindowLayer, lengths)])


class SandwichCharLMForCausalLM(SandwichCharLMPreTrainedModel, RecurrentLMForCausalLM):
    """The sandwich character model: (batch, length) -> (batch, length, vocabulary)."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}

    def __init__(self, config: SandwichCharLMConfig):
        super().__init__(config)
        self.model = SandwichCharLMModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def span_loss(self) -> torch.Tensor:
        """Compute what learned spans cost: the mean span of a sublayer's heads in tokens, summed, times `span_loss`."""
        spans: list[Any] = [attention.span for attention in self.span_attentions() if attention.span is not None]
        if not spans:
            return torch.zeros((), device=self.device)
        # where parameters are sharded, each process has a part of them
        whole = [span.full_tensor() if hasattr(span, "full_tensor") else span for span in spans]
        return self.config.span_loss * self.config.attention_span * torch.stack(whole).mean(1).sum()

    def score(
        self, states: torch.Tensor, labels: torch.Tensor | None, num_items_in_batch: torch.Tensor | int | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Score all characters; in training, spans cost something, too."""
        logits = self.lm_head(states)
        if labels is None:
            return logits, None
        loss = self.loss_function(
            logits=logits,
            labels=None,
            shift_labels=labels.contiguous(),
            vocab_size=self.config.vocab_size,
            num_items_in_batch=num_items_in_batch,
        )
        if self.training and self.config.adaptive_span:
            share = 1.0 if num_items_in_batch is None else (labels != IGNORED).sum() / num_items_in_batch
            loss = loss + share * self.span_loss()
        return logits, loss

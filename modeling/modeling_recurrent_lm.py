"""What the language models with memory share: bodies that read a text segment by segment, and their heads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import Cache
from transformers.cache_utils import DynamicSlidingWindowLayer
from transformers.modeling_outputs import (
    BaseModelOutputWithPast,
    CausalLMOutputWithPast,
)
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from sublayers.configuration.configuration_recurrent_lm import RecurrentLMConfig
from sublayers.modeling.body import Body
from sublayers.modeling.embeddings import check_tokens
from sublayers.modeling.heads import CheckedGenerationMixin, run_and_read
from sublayers.modeling.losses import IGNORED, check_labels
from sublayers.modeling.memory import Memory
from sublayers.modeling.mixers.mixer import Batch
from sublayers.modeling.modeling_sublayers import SublayersPreTrainedModel
from sublayers.modeling.plan import Plan


@dataclass
class ModelOutputWithMemory(BaseModelOutputWithPast):
    """Hidden states, and the memory for the next segment: (batch, remembered, hidden) of each attention sublayer."""

    memory: tuple[torch.Tensor, ...] | None = None


@dataclass
class CausalLMOutputWithMemory(CausalLMOutputWithPast):
    """Scores, and the memory as in `ModelOutputWithMemory`."""

    memory: tuple[torch.Tensor, ...] | None = None


class RecurrentLMPreTrainedModel(SublayersPreTrainedModel):
    """Base of the language models with memory."""

    config: RecurrentLMConfig
    # they know no distances
    _supports_flash_attn = False

    def empty_memory(self, batch_size: int) -> tuple[torch.Tensor, ...]:
        """Make the memory of nothing, with which a text begins: (batch, 0, hidden) of each attention sublayer."""
        shape = (batch_size, 0, self.config.hidden_size)
        body: Any = self.base_model
        return tuple(torch.zeros(shape, device=self.device, dtype=self.dtype) for _ in range(body.num_attentions))


class RecurrentLMModel(RecurrentLMPreTrainedModel, Body):
    """Token ids to hidden states: (batch, length) -> (batch, length, hidden); a family makes the embeddings."""

    # whether all attention sublayers remember as many tokens
    has_one_length = True

    def __init__(self, config: RecurrentLMConfig, embed_tokens: nn.Module):
        super().__init__(config, [config.order], is_causal=True, embed_tokens=embed_tokens)
        self.output_dropout = nn.Dropout(config.dropout)
        # compilers cannot read an order
        self.num_attentions = len(config.order.slots("self"))

    def check_memory(self, memory: Sequence[torch.Tensor], states: torch.Tensor) -> Memory:
        """Check that a memory fits the order and the batch.

        Raises:
            ValueError: it does not.
        """
        if len(memory) != self.num_attentions:
            raise ValueError(
                f"a memory of {len(memory)} attention sublayers does not fit {self.config.sublayer_order!r}, which has "
                f"{self.num_attentions}; begin with empty_memory(batch_size)"
            )
        batch, _, width = states.shape
        for remembered in memory:
            if remembered.ndim != 3 or (remembered.shape[0], remembered.shape[2]) != (batch, width):
                raise ValueError(
                    f"a memory of shape {(*remembered.shape,)} does not fit a batch of {batch} rows and width {width}; "
                    "begin with empty_memory(batch_size)"
                )
        if len({remembered.shape[1] for remembered in memory}) > 1 and self.has_one_length:
            raise ValueError(
                "all attention sublayers must remember as many tokens; begin with empty_memory(batch_size)"
            )
        return Memory(memory)

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        memory: Sequence[torch.Tensor] | None = None,
        plan: Plan | None = None,
        **kwargs,
    ) -> ModelOutputWithMemory:
        """Run the stack on a segment; a plan restricts the output to the positions that are read.

        With a memory, that of the segments before, which `empty_memory` begins, comes the next one. Generation has a
        cache instead.

        Raises:
            ValueError: neither or both of `input_ids` and `inputs_embeds`, ids outside the vocabulary, a memory that
                does not fit, or one beside a cache or a mask, or a cache of a model that remembers nothing.
        """
        tokens = check_tokens(input_ids, inputs_embeds, attention_mask, cache)
        if inputs_embeds is None:
            inputs_embeds = self.look_up_tokens(tokens)
        exchanged = None
        if memory is not None:
            if cache is not None or attention_mask is not None:
                raise ValueError("a memory stands for a cache, and its segments have no padding; pass it alone")
            exchanged, use_cache = self.check_memory(memory, inputs_embeds), False
        elif use_cache and cache is None and not self.training and self.config.sliding_window > 1:
            cache = self.empty_cache()
        if cache is not None and self.config.sliding_window < 2:
            raise ValueError(
                "a cache of memory_length=0 holds nothing; pass use_cache=False to read all of a text anew"
            )
        batch = Batch(
            inputs_embeds,
            plan or Plan.of(tokens, attention_mask, is_recorded=self.is_recorded(**kwargs)),
            attention_mask,
            position_ids=position_ids,
            cache=cache,
            positions=self.positions,
            memory=exchanged,
        )
        hidden_states = self.layers(self.embed(batch), batch, **kwargs)
        return ModelOutputWithMemory(
            last_hidden_state=self.output_dropout(self.norm(hidden_states)),
            cache=cache if use_cache else None,
            memory=None if exchanged is None else tuple(exchanged.next),
        )

    def empty_cache(self) -> Cache:
        """Make the cache of generation, which never holds more than attention sees."""
        return Cache(layers=[DynamicSlidingWindowLayer(self.config.sliding_window) for _ in range(self.num_attentions)])


class RecurrentLMForCausalLM(RecurrentLMPreTrainedModel, CheckedGenerationMixin):
    """The language model: (batch, length) -> (batch, length, vocabulary).

    A family makes the head, which turns states and, if there are any, the tokens that follow into logits and a loss.
    """

    loss_keywords = ("shift_labels",)
    model: RecurrentLMModel
    score: Callable[..., tuple[torch.Tensor | None, torch.Tensor | None]]

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        memory: Sequence[torch.Tensor] | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs,
    ) -> CausalLMOutputWithMemory:
        """Score the next token at each position that `logits_to_keep` keeps; only those run the feed-forward tail.

        Labels are the tokens themselves. With `shift_labels` they are, at each position, the token that follows, which
        for the last one stands in the next segment. See the body about memory.
        """
        shift_labels = kwargs.pop("shift_labels", None)
        states, outputs = run_and_read(
            self.model,
            logits_to_keep,
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            memory=memory,
            **kwargs,
        )
        if shift_labels is None and labels is not None:
            shift_labels = nn.functional.pad(labels, (0, 1), value=IGNORED)[..., 1:]
        if shift_labels is not None:
            check_labels(shift_labels, states)
        logits, loss = self.score(states, shift_labels, num_items_in_batch)
        return CausalLMOutputWithMemory(
            loss=loss,
            logits=logits,
            cache=outputs.cache,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            memory=outputs.memory,
        )

"""What the bodies of all families share."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import (
    Cache,
    DynamicCache,
    DynamicLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionLayer,
)

from .order import Order
from .dropout import dropout
from .embeddings import look_up, number_positions, position_embeddings
from .mixers_mixer import Batch, Source
from .mixers_relative_attention import RelativePositions
from .mixers_span_attention import DistanceKeys
from .modeling_sublayers import SublayersPreTrainedModel
from .norm import hidden_norm
from .plan import Plan
from .rotary import RotaryEmbedding
from .stack import SublayerStack

# slots of a cache with a state of fixed size
STATES = {"hybrid": LinearAttentionAndFullAttentionLayer, "conv": LinearAttentionLayer}
# positions that are not added to embeddings: all attentions of a stack share the module that knows them
SHARED_POSITIONS: dict[str, Callable[[Any], nn.Module]] = {
    "rotary": RotaryEmbedding,
    "relative": RelativePositions,
    "key_table": DistanceKeys,
}


def shared_positions(config) -> nn.Module | None:
    """Make the positions that attention itself knows, if a configuration asks for some."""
    kind = SHARED_POSITIONS.get(config.position_embedding_type)
    return kind and kind(config)


class Body(SublayersPreTrainedModel):
    """Embeddings, a stack of sublayers and the norm after it.

    Args:
        config: of the family.
        orders: what the stack runs, see `make_stack`.
        is_causal: whether a token sees only those before it.
        embed_tokens: ids (batch, length) -> (batch, length, hidden), with a number of embeddings.
        embed_token_types: segments (batch, length) -> (batch, length, hidden), in families that have them.
        embed_norm: what follows the sum of all embeddings.
        relative_bias: what attention adds to its scores, if it does.
    """

    def __init__(
        self,
        config,
        orders: list[Order],
        is_causal: bool,
        embed_tokens: nn.Module,
        embed_token_types: nn.Module | None = None,
        embed_norm: nn.Module | None = None,
        relative_bias: nn.Module | None = None,
    ):
        super().__init__(config)
        self.is_causal = is_causal
        self.embed_tokens = embed_tokens
        self.embed_positions = position_embeddings(config)
        self.positions = shared_positions(config)
        self.relative_bias = relative_bias
        if embed_token_types is not None:
            self.embed_token_types = embed_token_types
        self.embed_scale = config.hidden_size**0.5 if config.scale_embedding else 1.0
        self.embed_norm = embed_norm or nn.Identity()
        self.dropout = dropout(config, "embedding_dropout")
        self.layers = self.make_stack(orders)
        # what the slots of a cache are, where some keep a state
        kinds = getattr(config, "layer_types", [])
        self.slots = [STATES.get(kind, DynamicLayer) for kind in kinds] if {*kinds} & STATES.keys() else []
        self.norm = hidden_norm(config) if config.final_norm else nn.Identity()
        self.gradient_checkpointing = False

    def make_stack(self, orders: list[Order]) -> SublayerStack:
        """Make the sublayers of the only order."""
        (order,) = orders
        return SublayerStack(self.config, order, self.is_causal)

    def new_cache(self) -> DynamicCache:
        """Make an empty cache of the stack's own sequence."""
        # without the config, which compilers cannot read an order from, it grows as it is filled
        cache = DynamicCache()
        cache.layers = [slot() for slot in self.slots]
        return cache

    def look_up_tokens(self, input_ids: torch.Tensor, name: str = "input_ids") -> torch.Tensor:
        """Look tokens up: (batch, length) -> (batch, length, hidden). Raises what `look_up` raises."""
        table: Any = self.embed_tokens
        return look_up(table, input_ids, name, table.num_embeddings, "is this the model's own tokenizer?")

    def batch(
        self,
        states: torch.Tensor,
        plan: Plan,
        attention_mask: Any,
        position_ids: torch.Tensor | None = None,
        cache: Cache | None = None,
        source: Source | None = None,
    ) -> Batch:
        """Collect what mixers prepare their inputs from, for states (batch, length, hidden); number the tokens.

        Raises:
            ValueError: past and present are longer than `max_position_embeddings`.
        """
        numbers = position_ids
        if numbers is None:
            past_length = 0 if cache is None else cache.get_seq_length()
            length, limit = states.shape[1], self.config.position_limit
            numbers = number_positions(length, limit, attention_mask, states.device, past_length)
        # continuous batching's cache makes no masks
        is_new = cache is None or (isinstance(cache, DynamicCache) and not cache.get_seq_length())
        return Batch(
            states,
            plan,
            attention_mask,
            numbers=numbers,
            position_ids=position_ids if self.is_causal and is_new else None,
            cache=cache,
            positions=self.positions,
            relative_bias=self.relative_bias,
            source=source,
        )

    def embed(self, batch: Batch, token_types: torch.Tensor | None = None, name: str = "position_ids") -> torch.Tensor:
        """Add positions and embedded segments (batch, length, hidden) to the tokens: (batch, length, hidden).

        Positions that attention itself knows are not added. Raises what `look_up` raises.
        """
        states, numbers = batch.states * self.embed_scale, batch.numbers
        if self.embed_positions is not None:
            limit, remedy = self.config.max_position_embeddings, "shorten the input or raise max_position_embeddings"
            states = states + look_up(self.embed_positions, numbers + self.config.position_offset, name, limit, remedy)
        return self.dropout(self.embed_norm(states if token_types is None else states + token_types))

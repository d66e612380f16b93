"""What the bodies of all families share."""

from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache
from transformers.masking_utils import create_causal_mask

from sublayers.modeling.dropout import dropout
from sublayers.modeling.embeddings import look_up, position_embeddings
from sublayers.modeling.local_attention import local_mask
from sublayers.modeling.modeling_sublayers import SublayersPreTrainedModel
from sublayers.modeling.plan import Plan
from sublayers.modeling.rotary import rotary_positions
from sublayers.modeling.stack import SublayerStack, final_norm


class Body(SublayersPreTrainedModel):
    """Embeddings, a stack of sublayers and the norm behind it.

    Args:
        config: of the family.
        orders: what the stack runs, see there.
        is_causal: whether a token sees only those before it.
        embed_tokens: ids (batch, length) -> (batch, length, hidden), with a number of embeddings.
        embed_token_types: segments (batch, length) -> (batch, length, hidden), in families that have them.
        embed_norm: what follows the sum of all embeddings.
    """

    def __init__(
        self,
        config,
        orders: list[str],
        is_causal: bool,
        embed_tokens: nn.Module,
        embed_token_types: nn.Module | None = None,
        embed_norm: nn.Module | None = None,
    ):
        super().__init__(config)
        self.embed_tokens = embed_tokens
        self.embed_positions = position_embeddings(config)
        self.rotary_emb = rotary_positions(config)
        self.local_rotary_emb = None
        if config.local_rope_theta is not None:
            self.local_rotary_emb = rotary_positions(config, config.local_rope_theta)
        self.is_causal, self.is_local = is_causal, "w" in orders[0]
        if embed_token_types is not None:
            self.embed_token_types = embed_token_types
        self.embed_scale = config.hidden_size**0.5 if config.scale_embedding else 1.0
        self.embed_norm = embed_norm or nn.Identity()
        self.dropout = dropout(config, "embedding_dropout")
        self.layers = SublayerStack(config, orders, is_causal)
        self.norm = final_norm(config)
        self.gradient_checkpointing = False

    def look_up_tokens(self, input_ids: torch.Tensor, name: str = "input_ids") -> torch.Tensor:
        """Look tokens up: (batch, length) -> (batch, length, hidden). Raises what `look_up` raises."""
        table: Any = self.embed_tokens
        return look_up(table, input_ids, name, table.num_embeddings, "is this the model's own tokenizer?")

    def embed(
        self,
        inputs_embeds: torch.Tensor,
        position_ids: torch.Tensor,
        token_types: torch.Tensor | None = None,
        name: str = "position_ids",
    ) -> torch.Tensor:
        """Add positions (batch or 1, length) and embedded segments to tokens: (batch, length, hidden) -> the same.

        Rotary positions are not added. Raises what `look_up` raises.
        """
        states = inputs_embeds * self.embed_scale
        if self.embed_positions is not None:
            limit, remedy = self.config.max_position_embeddings, "shorten the input or raise max_position_embeddings"
            ids = position_ids + self.config.position_offset
            states = states + look_up(self.embed_positions, ids, name, limit, remedy)
        return self.dropout(self.embed_norm(states if token_types is None else states + token_types))

    def rotations(
        self, states: torch.Tensor, position_ids: torch.Tensor, plan: Plan
    ) -> tuple[torch.Tensor, ...] | None:
        """Look up the rotations of queries and keys for states (batch, length, hidden), in the plan's layout.

        None where positions are not rotary.
        """
        if self.rotary_emb is None:
            return None
        return tuple(plan.enter(part) for part in self.rotary_emb(states, position_ids))

    def causal_masks(
        self,
        states: torch.Tensor,
        attention_mask: torch.Tensor | dict[str, Any] | None,
        past_key_values: Cache | None,
        position_ids: torch.Tensor | None,
    ) -> tuple[Any, Any]:
        """Make the masks of a decoder's self-attention and local attention for states (batch, length, hidden).

        Masks that transformers makes ahead, for static or paged caches, come in a dict by its names of both kinds.
        """
        if isinstance(attention_mask, dict):
            return attention_mask.get("full_attention"), attention_mask.get("sliding_attention")
        full = create_causal_mask(self.config, states, attention_mask, past_key_values, position_ids)
        return full, self.local_mask(states, attention_mask, past_key_values, position_ids)

    def local_mask(
        self,
        states: torch.Tensor,
        attention_mask: torch.Tensor | None,
        past_key_values: Cache | None = None,
        position_ids: torch.Tensor | None = None,
    ) -> Any:
        """Make the mask of local attention, see `local_mask`, if there is any."""
        if not self.is_local:
            return None
        return local_mask(self.config, self.is_causal, states, attention_mask, past_key_values, position_ids)

    def local_inputs(self, mask: Any, states: torch.Tensor, position_ids: torch.Tensor, plan: Plan) -> dict[str, Any]:
        """Collect the inputs that differ from self-attention's: the mask, and perhaps the rotations."""
        if self.local_rotary_emb is None:
            return {"attention_mask": mask}
        rotations = tuple(plan.enter(part) for part in self.local_rotary_emb(states, position_ids))
        return {"attention_mask": mask, "position_embeddings": rotations}

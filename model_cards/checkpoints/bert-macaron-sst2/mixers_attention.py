"""Multi-head attention, two mixers of the stack."""

from typing import Any, NamedTuple

import torch
from torch import nn
from transformers.cache_utils import Cache
from transformers.integrations.sdpa_attention import repeat_kv
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .linear import is_bare
from .mixers_mixer import Batch, Inputs, Mixer
from .norm import rms_norm
from .plan import Packing, select_positions
from .relative_bias import add_bias
from .rotary import rotate


def check_caps(config, backend: str | None) -> None:
    """Check that a backend of attention can cap its scores, if it has to.

    Raises:
        ValueError: it cannot; transformers' paged ones would leave the caps out.
    """
    if config.attn_logit_softcapping is not None and backend in ("sdpa", "paged|sdpa", "paged|eager"):
        raise ValueError(
            f"attn_implementation={backend!r} knows no attn_logit_softcapping={config.attn_logit_softcapping}; "
            "choose 'eager' or 'flex_attention'"
        )


def takes_single_queries(config) -> bool:
    """Say whether the backend computes some queries alone; flash and flex attention compute all of them."""
    return config._attn_implementation in ("eager", "sdpa")


def eager_attention_forward(
    module, query, key, value, attention_mask, scaling, dropout=0.0, softcap: float | None = None, **kwargs
):
    """Spelled-out attention, the only kind that returns its weights: (batch, heads, length, head_dim) each.

    Several queries may share a head of keys and values.
    """
    key, value = (repeat_kv(states, query.shape[1] // states.shape[1]) for states in (key, value))
    weights = query @ key.transpose(2, 3) * scaling
    if softcap is not None:
        weights = torch.tanh(weights / softcap) * softcap
    if attention_mask is not None:
        weights = weights + attention_mask
    weights = nn.functional.softmax(weights, dim=-1, dtype=torch.float32).to(query.dtype)
    weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights


class Attention(Mixer):
    """What self- and cross-attention share: projections, and attention's core between them.

    Cache slots are numbered for each kind of cache on their own, whatever stands between them.
    """

    def __init__(self, config, layer_idx: int, is_causal: bool = False):
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.is_causal = is_causal
        self.head_dim = config.head_width
        self.scaling = self.head_dim**-0.5
        # by this name, backends look for how many queries share a key
        self.num_key_value_groups = config.num_attention_heads // config.key_value_heads
        width, key_width = config.num_attention_heads * self.head_dim, config.key_value_heads * self.head_dim
        self.q_proj = nn.Linear(config.hidden_size, width, config.attention_bias)
        self.k_proj = nn.Linear(config.hidden_size, key_width, config.attention_bias)
        self.v_proj = nn.Linear(config.hidden_size, key_width, config.attention_bias)
        self.gate_proj = None
        if config.attention_output_gate:
            self.gate_proj = nn.Linear(config.hidden_size, width, config.attention_bias)
        self.o_proj = nn.Linear(width, config.hidden_size, config.attention_output_bias)
        widths = (self.head_dim, self.head_dim) if config.qk_norm_per_head else (width, key_width)
        self.q_norm, self.k_norm = (rms_norm(config, each) if config.qk_norm else None for each in widths)

    @property
    def output_map(self) -> nn.Module:
        """The linear map whose result joins the residual stream."""
        return self.o_proj

    def close(self, mixed: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Gate what was mixed for some states, and map it to the residual stream: (batch, length, width) each."""
        return self.o_proj(mixed if self.gate_proj is None else mixed * self.gate_proj(states).sigmoid())

    def split_heads(
        self,
        states: torch.Tensor,
        packing: Packing | None,
        norm: nn.RMSNorm | None = None,
        rotations: tuple[torch.Tensor, ...] | None = None,
    ) -> torch.Tensor:
        """Lay projected states out for attention: (batch, length, hidden) -> (batch, heads, length, head_dim).

        Before that, each head, or all as one, is normalised, and each is rotated, if the configuration says so.
        """
        if norm is not None:
            states = norm(states.unflatten(-1, (-1, *norm.normalized_shape))).flatten(-2)
        states = states.unflatten(-1, (-1, self.head_dim))
        states = states if rotations is None else rotate(states, *rotations)
        states = states if packing is None else packing.pad(states)
        return states.transpose(1, 2)

    def attend(
        self, query, key, value, attention_mask: Any = None, **kwargs
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Mix values by the backend that the configuration names: (batch, heads, length, head_dim) each.

        Returns:
            The mix (batch, length, hidden), and the weights (batch, heads, length, keys) if the backend has them.
        """
        if self.config.attn_logit_softcapping is not None:
            check_caps(self.config, self.config._attn_implementation)
            kwargs["softcap"] = self.config.attn_logit_softcapping
        attention = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        dropout = self.config.attention_dropout if self.training else 0.0
        output, weights = attention(
            self, query, key, value, attention_mask, dropout=dropout, scaling=self.scaling, **kwargs
        )
        if torch.compiler.is_exporting():
            # an exported kernel may return another memory layout than the one it stands for
            output = output.clone(memory_format=torch.contiguous_format)
        return output.flatten(2), weights


class QueryContext(NamedTuple):
    """What attention knows of the tokens that have queries.

    Attributes:
        attention_mask: what they see, in the form that the backend wants.
        packing: of them; None: they stand in rows.
        rotations: of their queries, where positions are rotary.
        are_some: whether they are only some of the tokens with keys.
    """

    attention_mask: Any
    packing: Packing | None
    rotations: tuple[torch.Tensor, ...] | None
    are_some: bool = False


class SelfAttention(Attention):
    """Multi-head self-attention: (batch, length, hidden) -> (batch, length or kept, hidden)."""

    def prepare(self, batch: Batch, **kwargs) -> Inputs:
        """Make the mask, and look up the rotations where positions are rotary."""
        rotations = None
        if (rotary := self.rotary(batch)) is not None:
            rotations = tuple(batch.plan.enter(part) for part in rotary(batch.states, batch.numbers))
        named = {
            "attention_mask": self.make_mask(batch),
            "cache": batch.cache,
            "position_ids": batch.numbers,
            "position_embeddings": rotations,
        }
        return Inputs(named | kwargs)

    def narrow(self, inputs: Inputs, kept: torch.Tensor, packing: Packing, places: torch.Tensor) -> Inputs:
        """Keep the rotations of some tokens. Kinds whose masks can be narrowed narrow them themselves."""
        rotations = inputs.named.get("position_embeddings")
        if rotations is None:
            return inputs
        rotations = tuple(select_positions(part, kept) for part in rotations)
        return Inputs({**inputs.named, "position_embeddings": rotations})

    def rotary(self, batch: Batch) -> nn.Module | None:
        """Return the module that looks rotations up."""
        return batch.positions

    def make_mask(self, batch: Batch) -> Any:
        """Make the mask in the form that the backend wants, unless transformers has made it ahead."""
        mask = batch.attention_mask
        if isinstance(mask, dict):
            return mask.get("full_attention")
        if self.is_causal:
            return create_causal_mask(self.config, batch.states, mask, batch.past, batch.position_ids)
        made: Any = create_bidirectional_mask(self.config, batch.states, mask)
        if batch.relative_bias is None:
            return made
        if not takes_single_queries(self.config):
            raise ValueError(
                f"attn_implementation={self.config._attn_implementation!r} knows no relative biases; choose 'eager' or "
                "'sdpa'"
            )
        return add_bias(made, batch.relative_bias(batch.states.shape[1]))

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        cache: Cache | None = None,
        read_positions: torch.Tensor | None = None,
        packing: Packing | None = None,
        position_embeddings: tuple[torch.Tensor, ...] | None = None,
        slot: Any = None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend from every position, or only from `read_positions` (batch or 1, kept), to all that the mask shows.

        With a packing, hidden states, positions and rotations are those of the packed tokens, (1, tokens, hidden)
        and (1, kept), and rows exist between the projections only.
        """
        if read_positions is not None and not takes_single_queries(self.config):
            inputs = (attention_mask, cache, None, packing, position_embeddings)
            output, weights = self.forward(hidden_states, *inputs, slot=slot, **kwargs)
            return select_positions(output, read_positions), weights
        context = QueryContext(attention_mask, packing, position_embeddings)
        queries = hidden_states
        if read_positions is not None:
            queries = select_positions(hidden_states, read_positions)
            context = self.only(context, read_positions, hidden_states, cache, slot, kwargs.get("is_causal"))
        return self.attend_from(queries, context, hidden_states, packing, position_embeddings, cache, slot, **kwargs)

    def only(
        self,
        context: QueryContext,
        positions: torch.Tensor,
        states: torch.Tensor,
        cache: Cache | None,
        slot: int,
        is_causal: bool | None = None,
    ) -> QueryContext:
        """Narrow the queries to some positions (batch or 1, kept) of states (batch, length, hidden), packed or not."""
        mask, packing, rotations, _ = context
        if rotations is not None:
            rotations = tuple(select_positions(part, positions) for part in rotations)
        length = states.shape[1]
        if packing is not None:
            length = packing.length
            packing, positions = packing.only(positions)
        if mask is not None:
            mask = self.rows_of(mask, positions)
        elif self.is_causal if is_causal is None else is_causal:
            # the kernel would line the few queries up with the first keys
            mask = self.causal_rows(positions, length, cache, slot)
        return QueryContext(mask, packing, rotations, are_some=True)

    def attend_from(
        self,
        queries: torch.Tensor,
        context: QueryContext,
        states: torch.Tensor,
        packing: Packing | None,
        rotations: tuple[torch.Tensor, ...] | None,
        cache: Cache | None,
        slot: int,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend from queries (batch, kept, hidden) to states (batch, length, hidden), each packed or not."""
        query = self.split_heads(self.q_proj(queries), context.packing, self.q_norm, context.rotations)
        if context.are_some and query.shape[2] == 1 and cache is None and self.folds(states):
            rows = states if packing is None else packing.pad(states)
            output, weights = self.attend_to_states(query, rows, context.attention_mask, **kwargs)
        else:
            key = self.split_heads(self.k_proj(states), packing, self.k_norm, rotations)
            value = self.split_heads(self.v_proj(states), packing)
            if cache is not None:
                # continuous batching's cache fills in what its kernels need
                key, value = cache.update(key, value, slot, kwargs=kwargs)
            output, weights = self.attend(query, key, value, context.attention_mask, **kwargs)
        return self.close(output if context.packing is None else context.packing.pack(output), queries), weights

    def folds(self, states: torch.Tensor) -> bool:
        """Say whether the weights of keys and values may be used without calling their linear maps."""
        if not self.config.folds_attention:
            return False
        is_exported = torch.jit.is_tracing() or torch.compiler.is_exporting()
        # the bias of the keys would get no gradient, and training in several processes waits for every gradient
        is_trained = any(parameter.requires_grad for parameter in self.k_proj.parameters())
        learns = torch.is_grad_enabled() and is_trained and not is_exported
        return not (self.training or learns) and is_bare(self.k_proj, states) and is_bare(self.v_proj, states)

    def attend_to_states(
        self, query, states, attention_mask=None, **kwargs
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Mix the states (batch, length, hidden) for one query a row (batch, heads, 1, head_dim), and map the mix.

        A key is W_k x + b, so that q . k = (q W_k) . x + q . b. The last term is the same for all keys, and softmax
        ignores it. Weights sum to 1, so the mix of values is the value of the mix. So no position needs a key or a
        value.

        Returns:
            The mix (batch, 1, hidden), and the weights (batch, heads, 1, length) if the backend has them.
        """
        of_heads = (-1, self.head_dim, states.shape[-1])
        # all heads become queries of one head, whose width is that of the states
        queries = (query[:, :, 0].transpose(0, 1) @ self.k_proj.weight.view(of_heads)).transpose(0, 1)[:, None]
        mask = None if attention_mask is None else attention_mask.transpose(1, 2)
        mixed, weights = self.attend(queries, states[:, None], states[:, None], mask, **kwargs)
        values = mixed.transpose(0, 1) @ self.v_proj.weight.view(of_heads).transpose(1, 2)
        output = values.transpose(0, 1).flatten(1)[:, None]
        output = output if self.v_proj.bias is None else output + self.v_proj.bias
        return output, None if weights is None else weights.transpose(1, 2)

    def rows_of(self, attention_mask: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Choose the rows of positions (batch or 1, kept) from a mask: (batch or 1, 1, kept, keys)."""
        return select_positions(attention_mask.transpose(1, 2), positions).transpose(1, 2)

    def causal_rows(self, positions: torch.Tensor, length: int, cache: Cache | None, slot: int) -> torch.Tensor:
        """Say which keys the positions (batch or 1, kept) of `length` new tokens see: (batch or 1, 1, kept, keys)."""
        past_length, num_keys = 0, length
        if cache is not None:
            past_length = cache.get_seq_length(slot)
            num_keys, _ = cache.get_mask_sizes(length, slot)
        visible = torch.arange(num_keys, device=positions.device) <= (positions + past_length)[..., None]
        return visible[:, None]

"""Position embeddings and the checked look-up of tokens."""

import math

import torch
from torch import nn
from transformers.cache_utils import Cache, EncoderDecoderCache


def sinusoid_table(num_positions: int, hidden_size: int) -> torch.Tensor:
    """Sinusoids of Vaswani et al. (2017), the sines before the cosines as in fairseq: (num_positions, hidden_size)."""
    half = hidden_size // 2
    # in half precision, large angles would be wrong by whole turns
    frequencies = torch.exp(torch.arange(half, dtype=torch.float32) * (-math.log(10000) / max(half - 1, 1)))
    angles = torch.arange(num_positions)[:, None] * frequencies
    table = torch.cat([angles.sin(), angles.cos()], dim=1).to(torch.get_default_dtype())
    return nn.functional.pad(table, (0, hidden_size % 2))


class SinusoidalPositions(nn.Module):
    """A fixed table of sinusoids, looked up by position: (batch, length) -> (batch, length, hidden)."""

    table: torch.Tensor

    def __init__(self, num_positions: int, hidden_size: int):
        super().__init__()
        self.num_positions, self.hidden_size = num_positions, hidden_size
        self.register_buffer("table", sinusoid_table(num_positions, hidden_size), persistent=False)

    def forward(self, position_ids: torch.Tensor) -> torch.Tensor:
        """Look the positions up."""
        return nn.functional.embedding(position_ids, self.table)


def position_embeddings(config) -> nn.Module | None:
    """Make the learned or the fixed table of positions, if a configuration asks for one."""
    kinds: dict[str, type[nn.Module]] = {"learned": nn.Embedding, "sinusoidal": SinusoidalPositions}
    if config.position_embedding_type not in kinds:
        return None
    kind = kinds[config.position_embedding_type]
    return kind(config.max_position_embeddings + config.position_offset, config.hidden_size)


def number_positions(
    length: int, limit: float, attention_mask: torch.Tensor | None, device, past_length: int | torch.Tensor = 0
) -> torch.Tensor:
    """Number tokens from 0, after those of the past and without counting padding: (batch or 1, length).

    Raises:
        ValueError: past and present are longer than `limit`.
    """
    if isinstance(past_length, int) and past_length + length > limit:
        raise ValueError(
            f"a sequence of {past_length + length} tokens does not fit into max_position_embeddings={limit}; "
            "shorten it or build the model with more positions"
        )
    if isinstance(attention_mask, torch.Tensor) and attention_mask.ndim == 2:
        return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, -length:]
    return torch.arange(length, device=device)[None] + past_length


def check_shape(name: str, tensor: torch.Tensor | None, *shape: int) -> None:
    """Check the shape of labels or a mask, if they are given; attention takes masks that are made ahead as they are.

    Raises:
        ValueError: they have another one.
    """
    if isinstance(tensor, torch.Tensor) and tensor.ndim != 4 and tensor.shape != shape:
        raise ValueError(f"{name} must have the shape of the tokens, {shape}, got {(*tensor.shape,)}")


def check_tokens(
    input_ids: torch.Tensor | None,
    inputs_embeds: torch.Tensor | None,
    attention_mask: torch.Tensor | None = None,
    cache: Cache | EncoderDecoderCache | None = None,
    prefix: str = "",
) -> torch.Tensor:
    """Return whichever of ids (batch, length) and their embeddings (batch, length, hidden) is given.

    The caller's argument names start with `prefix`.

    Raises:
        ValueError: both are, or neither, they hold no token, or a mask is not (batch, past and present length).
    """
    tokens = inputs_embeds if input_ids is None else input_ids
    if tokens is None or (input_ids is not None and inputs_embeds is not None):
        raise ValueError(f"pass exactly one of {prefix}input_ids and {prefix}inputs_embeds")
    are_ids = inputs_embeds is None
    if tokens.ndim != (2 if are_ids else 3) or 0 in tokens.shape:
        name, shape = ("input_ids", "batch, length") if are_ids else ("inputs_embeds", "batch, length, hidden")
        raise ValueError(f"{prefix}{name} must have shape ({shape}), none of them 0, got {(*tokens.shape,)}")
    batch, length = tokens.shape[:2]
    if isinstance(attention_mask, torch.Tensor) and cache is not None:
        # not every cache knows how long the past is
        length = max(length, attention_mask.shape[-1])
    check_shape(f"{prefix}attention_mask", attention_mask, batch, length)
    return tokens


def look_up(embedding: nn.Module, ids: torch.Tensor, name: str, limit: int, remedy: str) -> torch.Tensor:
    """Look ids up in an embedding: (batch, length) -> (batch, length, hidden).

    Raises:
        ValueError: ids that are no integers, or one outside the table (on a GPU, where looking would cost a
            synchronisation, the kernel asserts).
    """
    if ids.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"{name} must be integers of 32 or 64 bits, got {ids.dtype}; call .long() on them")
    try:
        return embedding(ids)
    except IndexError:
        found = f"{ids.min().item()} to {ids.max().item()}"
        raise ValueError(f"{name} must lie between 0 and {limit - 1}, got {found}; {remedy}") from None

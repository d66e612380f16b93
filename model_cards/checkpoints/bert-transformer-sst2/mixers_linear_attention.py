"""Linear attention with decays: what each token reads from a matrix that all tokens before it have written.

Dao and Gu (2024), "Transformers are SSMs", section 6; Yang et al. (2024), "Gated Delta Networks: Improving Mamba2 with
Delta Rule", section 3.2. transformers' own functions compute the same in 32 bits, and in more time and memory on a CPU.
They are called where a kernel stands for them.
"""

import torch
from torch import nn


def attend_linearly(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    log_decay: torch.Tensor,
    rate: torch.Tensor | None = None,
    state: torch.Tensor | None = None,
    chunk_size: int = 64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Write all tokens into the state, one after the other, and read it by each: S <- exp(log_decay) S + k v^T; q^T S.

    With a rate, the delta rule writes rate * (v - S^T k) in the place of v.

    Args:
        query: (batch, length, groups, state size); a group is shared by heads that follow each other.
        key: of the same shape.
        value: (batch, length, heads, head_dim).
        log_decay: 0 or less, (batch, length, heads).
        rate: (batch, length, heads).
        state: what earlier tokens have written, (batch, heads, state size, head_dim); None: nothing.
        chunk_size: how many tokens are computed at once.

    Returns:
        What is read (batch, length, heads, head_dim), and the state after all tokens, in 32 bits at least.
    """
    given = value.dtype
    dtype = torch.promote_types(given, torch.float32)
    query, key, value, log_decay = (states.to(dtype) for states in (query, key, value, log_decay))
    rate = None if rate is None else rate.to(dtype)
    if state is None:
        state = value.new_zeros(value.shape[0], value.shape[2], key.shape[3], value.shape[3])
    compute = attend_to_one if value.shape[1] == 1 else attend_in_chunks
    read, state = compute(query, key, value, log_decay, rate, state.to(dtype), chunk_size)
    return read.to(given), state


def spread(states: torch.Tensor, heads: int, dim: int) -> torch.Tensor:
    """Give each head of values the keys or queries of its group."""
    shared = heads // states.shape[dim]
    return states if shared == 1 else states.repeat_interleave(shared, dim)


def attend_to_one(query, key, value, log_decay, rate, state, chunk_size) -> tuple[torch.Tensor, torch.Tensor]:
    """Do what `attend_linearly` does for a single token."""
    heads = value.shape[2]
    query, key = (spread(states, heads, 2).transpose(1, 2) for states in (query, key))
    value, state = value.transpose(1, 2), state * log_decay.exp().transpose(1, 2)[..., None]
    if rate is not None:
        value = rate.transpose(1, 2)[..., None] * (value - key @ state)
    state = state + key.mT * value
    return (query @ state).transpose(1, 2), state


def attend_in_chunks(query, key, value, log_decay, rate, state, chunk_size) -> tuple[torch.Tensor, torch.Tensor]:
    """Do what `attend_linearly` does, with matrix products of the tokens of a chunk instead of a loop over tokens."""
    heads = value.shape[2]
    # a graph computes the same at every length
    is_exported = torch.jit.is_tracing() or torch.compiler.is_exporting()
    size = value.shape[1] if is_exported else min(chunk_size, value.shape[1])
    missing = 0 if is_exported else -value.shape[1] % size

    def divide(states: torch.Tensor) -> torch.Tensor:
        # (batch, length, heads, ...) -> (batch, chunks, heads, size, ...); what is missing writes nothing
        padding = (0, 0) * (states.ndim - 2) + (0, missing)
        states = nn.functional.pad(states, padding) if missing else states
        return (states[:, None] if is_exported else states.unflatten(1, (-1, size))).transpose(2, 3)

    query, key, value, log_decay = map(divide, (query, key, value, log_decay))
    # from the start of its chunk to each token, and from each token to every later one
    total = log_decay.cumsum(-1)
    later = torch.ones(size, size, dtype=torch.bool, device=total.device).triu(1)
    decay = (total[..., :, None] - total[..., None, :]).masked_fill(later, -torch.inf).exp()
    scores = spread(query @ key.mT, heads, 2) * decay
    from_start, to_end = total.exp()[..., None], (total[..., -1:] - total).exp()[..., None]
    whole = total[..., -1].exp()[..., None, None]
    if rate is not None:
        # of what the tokens of a chunk write, each sees what those before it have written: a triangular system
        rate = divide(rate)[..., None]
        system = spread(key @ key.mT, heads, 2) * decay * rate
        sides = torch.cat([rate * value, rate * from_start * spread(key, heads, 2)], -1)
        solved = torch.linalg.solve_triangular(system, sides, upper=False, unitriangular=True)
        value, known = solved.split([value.shape[-1], key.shape[-1]], -1)
    query, key = spread(query, heads, 2) * from_start, (spread(key, heads, 2) * to_end).mT
    if rate is None:
        states = []
        for added, kept in zip((key @ value).unbind(1), whole.unbind(1), strict=True):
            states.append(state)
            state = torch.addcmul(added, state, kept)
        read = scores @ value + query @ torch.stack(states, 1)
    else:
        rows = []
        # the gradients of slices would each be as large as the whole
        parts = (each.unbind(1) for each in (query, key, value, known, scores, whole))
        for asked, keys, values, old, weights, kept in zip(*parts, strict=True):
            # what the state before the chunk says of a key is no news
            written = values - old @ state
            rows.append(weights @ written + asked @ state)
            state = torch.addcmul(keys @ written, state, kept)
        read = torch.stack(rows, 1)
    read = read.transpose(2, 3).flatten(1, 2)
    return read[:, : read.shape[1] - missing], state

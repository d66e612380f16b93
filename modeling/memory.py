"""The memory of recurrent language models: what attention read in earlier segments, without its gradient."""

from collections.abc import Sequence
from typing import Any

import torch

from sublayers.modeling.sublayer import Sublayer


class Memory:
    """The inputs of each attention sublayer in earlier segments, and those that the next segment will find.

    Dai et al. (2019), "Transformer-XL: Attentive Language Models beyond a Fixed-Length Context", section 3.2.

    Args:
        states: (batch, remembered, hidden) of each attention sublayer, in their order.
    """

    def __init__(self, states: Sequence[torch.Tensor]):
        self.states = tuple(states)
        # not changed in place, since checkpointing runs a sublayer twice
        self.next = list(states)

    def exchange(self, number: int, states: torch.Tensor, limit: int) -> torch.Tensor:
        """Return what an attention remembers, and let it remember new states (batch, length, hidden), too."""
        seen = torch.cat([self.states[number], states.detach()], dim=1)
        self.next[number] = seen[:, max(0, seen.shape[1] - limit) :]
        return self.states[number]


class RecurrentSublayer(Sublayer):
    """An attention sublayer that also sees what it remembers of earlier segments."""

    def forward(
        self, hidden_states: torch.Tensor, *sources: torch.Tensor, memory: Memory | None = None, **kwargs
    ) -> torch.Tensor:
        """Run the sublayer as any other; its mixer finds the remembered states, normalised as its input is."""
        mixer: Any = self.mixer
        remembered = None
        if memory is not None:
            remembered = memory.exchange(mixer.layer_idx, hidden_states, mixer.memory_length)
            remembered = self.norm(remembered) if self.pre_norm else remembered
        return super().forward(hidden_states, *sources, remembered=remembered, **kwargs)

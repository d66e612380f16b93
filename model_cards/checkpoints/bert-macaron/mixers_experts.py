"""Experts, a mixer of the stack: feed-forwards of which a router chooses some for each position.

Shazeer et al. (2017), "Outrageously Large Neural Networks: The Sparsely-Gated Mixture-of-Experts Layer", section 2.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.integrations.moe import batched_mm_experts_forward
from transformers.models.qwen3_moe.modeling_qwen3_moe import (
    Qwen3MoeExperts,
    Qwen3MoeMLP,
    Qwen3MoeTopKRouter,
    load_balancing_loss_func,
)

from .order import Order
from .mixers_feed_forward import activation
from .mixers_mixer import Batch, Drawn, Inputs, Mixer
from .plan import Packing
from .sublayer import Sublayer

# bytes of which the rows of a grouped product are multiples
ALIGNMENT = 16


class Routed(NamedTuple):
    """What a router did.

    Attributes:
        is_causal: whether it is one of a decoder.
        logits: its scores of the experts, (tokens, experts).
        real: which of the tokens are no padding, (tokens,).
        packing: of the tokens; None: they are all of a batch, or all that are read.
        learns: whether the router is trained.
    """

    is_causal: bool
    logits: torch.Tensor
    real: torch.Tensor
    packing: Packing | None
    learns: bool


class Routing(list[Routed]):
    """What the routers of a model did in one forward pass, one after the other."""

    def add_to(self, outputs: Any, config: Any) -> None:
        """Add scores and the load-balancing loss to a model's outputs, and the loss to theirs, as transformers does.

        Scores are (batch * length, experts), with zeros for padding that was not computed, or (read in all, experts).
        The loss is the sum of an encoder's and a decoder's; padding does not count.
        """
        sides = {"encoder_": False, "decoder_": True} if config.is_encoder_decoder else {"": None}
        losses = []
        for side, is_causal in sides.items():
            own = [each for each in self if is_causal in (None, each.is_causal)]
            logits = [each.logits for each in own]
            outputs[f"{side}router_logits"] = tuple(
                scores if each.packing is None else each.packing.pad(scores[None]).flatten(0, 1)
                for scores, each in zip(logits, own, strict=True)
            )
            if sum(map(len, logits)):
                # it adds the layers up, so it may have them as one
                together, real = torch.cat(logits), torch.cat([each.real for each in own])
                number, chosen = config.num_experts, config.num_experts_per_tok
                losses.append(load_balancing_loss_func((together,), number, chosen, real))
        if losses:
            outputs["aux_loss"] = sum(losses)
            if outputs.get("loss") is not None:
                outputs["loss"] = outputs["loss"] + config.router_aux_loss_coef * outputs["aux_loss"]


def balanced(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Let the forward of a model add what its routers did to its outputs, where `output_router_logits` says so.

    That is an argument or a field of the configuration. The forward raises a ValueError where checkpoints would keep
    the gradients of that loss back.
    """

    @wraps(forward)
    def added(self, *args, output_router_logits: bool | None = None, routing: Routing | None = None, **kwargs):
        if routing is not None:
            return forward(self, *args, routing=routing, **kwargs)
        asked = self.config.output_router_logits if output_router_logits is None else output_router_logits
        if not asked:
            return forward(self, *args, **kwargs)
        given, routing = kwargs.pop("return_dict", None), Routing()
        outputs = forward(self, *args, routing=routing, return_dict=True, **kwargs)
        if torch.is_grad_enabled() and any(each.learns and not each.logits.requires_grad for each in routing):
            raise ValueError(
                "the load-balancing loss of output_router_logits=True has no gradient under reentrant checkpoints; "
                "give gradient_checkpointing_kwargs={'use_reentrant': False}"
            )
        routing.add_to(outputs, self.config)
        return outputs if (self.config.return_dict if given is None else given) else outputs.to_tuple()

    return added


class Router(Qwen3MoeTopKRouter, Drawn):
    """Chooses experts: (tokens, hidden) -> scores (tokens, experts), weights and numbers of the chosen ones."""

    def draw_weights(self, config) -> None:
        """Draw weights as those of a linear map."""
        init.normal_(self.weight, std=config.initializer_range)


class RoutedExperts(Qwen3MoeExperts, Drawn):
    """All experts, in the implementation that `experts_implementation` names: (tokens, hidden) -> (tokens, hidden).

    Each has the gate of "GLU Variants Improve Transformer" (Shazeer, 2020) and no biases.
    """

    config: Any

    def __init__(self, config, act: nn.Module):
        super().__init__(config)
        self.act_fn = act

    def draw_weights(self, config) -> None:
        """Draw weights; what joins the stream is that of one sublayer among several."""
        std = config.initializer_range
        init.normal_(self.gate_up_proj, std=std)
        number: Any = self.num_sublayers
        init.normal_(self.down_proj, std=std * number**-0.5 if config.norm_position == "pre" else std)

    def forward(self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor):
        """Sum the chosen experts (tokens, chosen) under their weights (tokens, chosen)."""
        if torch.jit.is_tracing() or torch.compiler.is_exporting():
            # an exported graph computes the same whatever is chosen
            return batched_mm_experts_forward(self, hidden_states, top_k_index, top_k_weights)
        if self.config._experts_implementation == "grouped_mm" and not self.has_grouped_product():
            loop: Any = Qwen3MoeExperts.forward
            return loop.__wrapped__(self, hidden_states, top_k_index, top_k_weights)
        return super().forward(hidden_states, top_k_index, top_k_weights)

    def has_grouped_product(self) -> bool:
        """Say whether torch has a product of groups for these weights; where it compiles, transformers' own has all."""
        size = self.down_proj.element_size()
        is_aligned = not any(size * width % ALIGNMENT for width in self.down_proj.shape[1:])
        return torch.compiler.is_compiling() or (is_aligned and self.down_proj.dtype != torch.float64)


class Experts(Mixer):
    """A router, the experts, and an expert that every position has: (batch, length, hidden) -> the same."""

    def __init__(self, config, hidden_act: str, is_causal: bool):
        super().__init__()
        self.is_causal = is_causal
        self.jitter_noise = config.router_jitter_noise
        # the last factor of what a gate multiplies
        act = nn.Sequential(ACT2FN[hidden_act], nn.Dropout(config.activation_dropout))
        self.router = Router(config)
        self.experts = RoutedExperts(config, act)
        self.shared_expert = self.shared_expert_gate = None
        if config.shared_expert_intermediate_size:
            self.shared_expert = Qwen3MoeMLP(config, config.shared_expert_intermediate_size)
            self.shared_expert.act_fn = act
        if config.shared_expert_gate:
            self.shared_expert_gate = nn.Linear(config.hidden_size, 1, bias=False)

    @property
    def output_map(self) -> Any:
        """The module whose result joins the residual stream."""
        return self.experts

    def prepare(self, batch: Batch, routing: Routing | None = None, **kwargs) -> Inputs:
        """Hand on where routers write what they did, and which tokens are no padding."""
        return Inputs({"routing": routing, "real": batch.plan.real})

    def forward(
        self,
        hidden_states: torch.Tensor,
        routing: Routing | None = None,
        real: torch.Tensor | None = None,
        packing: Packing | None = None,
        **kwargs,
    ) -> tuple[torch.Tensor, None]:
        """Route each position on its own, wherever it stands.

        Where `real` (batch, length) is false, there is padding, which packed states do not have.
        """
        shape = hidden_states.shape[:2]
        if self.training and self.jitter_noise:
            noise = torch.empty_like(hidden_states).uniform_(1 - self.jitter_noise, 1 + self.jitter_noise)
            hidden_states = hidden_states * noise
        states = hidden_states.flatten(0, 1)
        logits, weights, chosen = self.router(states)
        mixed = self.experts(states, chosen, weights)
        if self.shared_expert is not None:
            shared = self.shared_expert(states)
            gate = self.shared_expert_gate
            mixed = mixed + (shared if gate is None else gate(states).sigmoid() * shared)
        if routing is not None:
            # what is read is no padding
            if packing is not None or real is None or real.shape != shape:
                real = logits.new_ones(shape, dtype=torch.bool)
            if packing is not None and packing.number != len(states):
                # a tail has only some of them
                packing = None
            learns = self.router.weight.requires_grad
            routing.append(Routed(self.is_causal, logits, real.flatten(), packing, learns))
        return mixed.unflatten(0, shape), None


def build(config, order: Order, place: int, is_causal: bool) -> Sublayer:
    """Make the sublayer at a place of an order."""
    mixer = Experts(config, activation(config, order, place), is_causal)
    if mixer.shared_expert is not None:
        # which is drawn as all maps that join the stream
        mixer.shared_expert.down_proj.num_sublayers = len(order)  # type: ignore[assignment]
    return Sublayer(config, mixer, config.feed_forward_scale)

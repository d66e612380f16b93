"""Optimisers that papers use and torch does not have: LAMB as NVIDIA trains with it, Adagrad with clipped tensors."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from pytorch_optimizer import Lamb
from transformers import TrainingArguments


class JITLamb(Lamb):
    """LAMB (You et al., 2020) as NVIDIA trains Transformer-XL with it, after Mandava et al. (2020), table 1.

    There is no bias correction, weight decay is part of the update that the trust ratio scales, and the norm of the
    weights counts as 10 at most. Unlike in `NVLamb`, parameters without weight decay have a trust ratio, too.

    Args:
        params: parameters or groups of them.
        settings: `lr`, `betas`, `eps` and `weight_decay`, unless the groups have their own.
    """

    def __init__(self, params: Iterable[Any], **settings: Any):
        # without adam_debias the library corrects the first moment outside the trust ratio: steps 10 times as large
        super().__init__(params, weight_decouple=False, adam_debias=True, **settings)


class NVLamb(JITLamb):
    """LAMB (You et al., 2020, Algorithm 2) with the choices of NVIDIA's BERT recipe, which Mandava et al. (2020) use.

    The bias of both moments is corrected, the norm of the weights is not clamped, and parameters without weight decay
    have a trust ratio of 1, which leaves them Adam's update. Clip the norm of all gradients to 1 before each step
    (`--max_grad_norm 1`).
    """

    clamp = math.inf

    def __init__(self, params: Iterable[Any], **settings: Any):
        super().__init__(params, **settings)
        for group in self.param_groups:
            group["adam"] = group["weight_decay"] == 0
        # by group, the settings that a step replaces
        self.given: list[dict[str, float]] = []
        self.register_step_pre_hook(self.correct)
        self.register_step_post_hook(self.restore)

    def correct(self, *_: Any) -> None:
        """Change the settings so that the library's step, which corrects no bias, is one with corrected moments.

        With b = 1 - beta^t for each moment, the corrected update is sqrt(b2) / b1 times the library's with the epsilon
        sqrt(b2) * eps. Adam's update takes that factor in its rate. Where there is a trust ratio, no factor of the
        update counts, and the weight decay is divided by it.
        """
        self.given = [{name: group[name] for name in ("lr", "eps", "weight_decay")} for group in self.param_groups]
        for group in self.param_groups:
            first, second = (1 - beta ** (group.get("step", 0) + 1) for beta in group["betas"])
            factor = math.sqrt(second) / first
            group["eps"] *= math.sqrt(second)
            group["weight_decay"] /= factor
            group["lr"] *= factor if group["adam"] else 1

    def restore(self, *_: Any) -> None:
        """Set what `correct` has changed back."""
        for group, given in zip(self.param_groups, self.given, strict=True):
            group.update(given)


class ClippingAdagrad(torch.optim.Adagrad):
    """Adagrad that clips the gradient of each tensor by itself, as Sukhbaatar et al. (2019) train, section 4.

    As in their code, what is clipped is the step: the sum of squares is that of whole gradients.

    Args:
        params: parameters or groups of them.
        max_tensor_grad_norm: the largest norm of a tensor's gradient; None: not clipped.
        settings: those of torch's Adagrad.
    """

    def __init__(self, params: Iterable[Any], max_tensor_grad_norm: float | None = None, **settings: Any):
        super().__init__(params, **settings)
        if max_tensor_grad_norm is not None:
            self.register_step_pre_hook(lambda *_: self.clip(max_tensor_grad_norm))

    @torch.no_grad()
    def clip(self, largest: float) -> None:
        """Clip the gradients, and add to the sums of squares what they lose by it."""
        for parameter in (parameter for group in self.param_groups for parameter in group["params"]):
            if parameter.grad is not None:
                share = (largest / parameter.grad.norm()).clamp(max=1)
                self.state[parameter]["sum"].add_(parameter.grad.square() * (1 - share**2))
                parameter.grad.mul_(share)


def own_optimizer(
    name: str | None, max_tensor_grad_norm: float | None, args: TrainingArguments
) -> tuple[type, dict[str, Any]] | None:
    """Choose an optimizer of this module by its name in the flags, with its settings; None is the Trainer's own."""
    if name is None:
        return None
    if name == "adagrad":
        return ClippingAdagrad, {"lr": args.learning_rate, "max_tensor_grad_norm": max_tensor_grad_norm}
    lamb = {"lamb": NVLamb, "jitlamb": JITLamb}[name]
    return lamb, {"lr": args.learning_rate, "betas": (args.adam_beta1, args.adam_beta2), "eps": args.adam_epsilon}

"""LAMB as NVIDIA trains BERT with it."""

import math
from collections.abc import Iterable
from typing import Any

from pytorch_optimizer import Lamb


class NVLamb(Lamb):
    """LAMB (You et al., 2020, Algorithm 2) with the choices of NVIDIA's BERT recipe, but without bias correction.

    The weight decay is part of the update that the trust ratio scales; the norm of the weights is not clamped; and
    parameters without weight decay have a trust ratio of 1, which leaves them Adam's update. Clip the norm of all
    gradients to 1 before each step (`--max_grad_norm 1`). NVIDIA corrects the bias of both moments, which the library's
    implementation cannot: the trust ratio cancels that for matrices up to their weight decay, but the first steps of
    parameters without one are up to 3 times as large.

    Args:
        params: parameters or groups of them.
        settings: `lr`, `betas`, `eps` and `weight_decay`, unless the groups have their own.
    """

    clamp = math.inf

    def __init__(self, params: Iterable[Any], **settings: Any):
        # without adam_debias the library corrects the first moment outside the trust ratio: steps 10 times as large
        super().__init__(params, weight_decouple=False, adam_debias=True, **settings)
        for group in self.param_groups:
            group["adam"] = group["weight_decay"] == 0

"""`e`: experts, gated feed-forwards of which a router chooses some for each position."""

from .letters_letter import Letter, Sizes, Work


def _size(sizes: Sizes, name: str) -> int:
    return sizes.letter_fields.get(name, 0)


def _weights(sizes: Sizes, experts: int) -> int:
    """Count the weights of some experts, of the router, and of the shared expert with its gate."""
    shared = 3 * _size(sizes, "shared_expert_intermediate_size") + _size(sizes, "shared_expert_gate")
    routed = 3 * experts * _size(sizes, "moe_intermediate_size")
    return sizes.hidden_size * (routed + _size(sizes, "num_experts") + shared)


def _multiply_adds(sizes: Sizes, work: Work) -> int:
    return work.read * _weights(sizes, _size(sizes, "num_experts_per_tok"))


def _check(sizes: Sizes) -> None:
    chosen, number = _size(sizes, "num_experts_per_tok"), _size(sizes, "num_experts")
    if chosen > number:
        raise ValueError(f"num_experts_per_tok={chosen} is more than num_experts={number}; give fewer, or more experts")
    if _size(sizes, "shared_expert_gate") and not _size(sizes, "shared_expert_intermediate_size"):
        raise ValueError(
            "shared_expert_gate=True, but there is no shared expert; give shared_expert_intermediate_size, or leave it "
            "out"
        )


LETTER = Letter(
    name="experts",
    colour="#7e57c2",
    square="🟣",
    group="feed-forward",
    cache=None,
    fields={"num_experts": 1, "num_experts_per_tok": 1, "moe_intermediate_size": 1},
    options={
        # whether the weights of the chosen experts are divided by their sum
        "norm_topk_prob": False,
        # an expert that every position has, and whether a sigmoid weighs it
        "shared_expert_intermediate_size": 0,
        "shared_expert_gate": False,
        # whether outputs have the scores of the routers, and losses their share of load balancing
        "output_router_logits": False,
        # TRL takes any other weight for a sign of experts
        "router_aux_loss_coef": 0.0,
        # in training, states are multiplied by numbers from 1 - noise to 1 + noise
        "router_jitter_noise": 0.0,
    },
    check=_check,
    parameters=lambda sizes: _weights(sizes, _size(sizes, "num_experts")),
    multiply_adds=_multiply_adds,
    units=2,
    tensor_parallel_plan={
        "experts.gate_up_proj": "packed_colwise",
        "experts.down_proj": "rowwise",
        "experts": "moe_tp_experts",
        "shared_expert.gate_proj": "colwise",
        "shared_expert.up_proj": "colwise",
        "shared_expert.down_proj": "rowwise",
    },
    expert_parallel_plan={
        "experts.gate_up_proj": "grouped_gemm",
        "experts.down_proj": "grouped_gemm",
        "experts": "ep_dispatch_experts",
    },
)

"""How the sublayers of a stack are split among processes, by transformers' names of such plans."""

from typing import Any

from .alphabet import ALPHABET
from .order import Order

# a norm of all heads reads those of every process
WHOLE = dict.fromkeys(("q_proj", "k_proj", "v_proj", "gate_proj"), "colwise_gather_output")
WHOLE |= {"o_proj": "rowwise_split_input"}


def tensor_parallel_plan(config: Any, order: Order) -> dict[str, str]:
    """Say how embeddings and a stack of that order are split, without rules for modules that are not there."""
    plan, absent = {"embed_tokens": "embedding_rowwise"}, set()
    if not config.gated_feed_forward:
        absent.add("gate")
    if not (config.qk_norm and config.qk_norm_per_head):
        absent |= {"q_norm", "k_norm"}
    if not config.attention_output_gate:
        absent.add("gate_proj")
    if config.relative_key_distance is None:
        absent.add("distance_proj")
    if not config.shared_expert_intermediate_size:
        absent |= {f"shared_expert.{name}_proj" for name in ("gate", "up", "down")}
    others = {} if config.qk_norm_per_head else WHOLE
    for letter in sorted(order.alphabet):
        rules = ALPHABET[letter].tensor_parallel_plan.items()
        plan |= {f"layers.*.mixer.{name}": others.get(name, split) for name, split in rules if name not in absent}
    return plan


def expert_parallel_plan(order: Order) -> dict[str, str]:
    """Say how the experts of a stack of that order are divided."""
    rules = [rule for letter in sorted(order.alphabet) for rule in ALPHABET[letter].expert_parallel_plan.items()]
    return {f"layers.*.mixer.{name}": split for name, split in rules}

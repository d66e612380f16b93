"""What attentions of all kinds cost."""

from .letters_letter import Sizes, Work

TENSOR_PARALLEL_PLAN = dict.fromkeys(("q_proj", "k_proj", "v_proj", "gate_proj"), "colwise") | {"o_proj": "rowwise"}
# each process has some of the heads that they learn from
TENSOR_PARALLEL_PLAN |= dict.fromkeys(("q_norm", "k_norm"), "replicated_with_grad_allreduce")


def parameters(sizes: Sizes) -> int:
    """Count weights and biases of the four maps and of the gate, and the norms of queries and keys."""
    hidden, queries, keys = sizes.hidden_size, sizes.query_width, sizes.key_width
    gates = sizes.attention_output_gate * queries
    biases = sizes.attention_bias * (queries + gates + 2 * keys) + sizes.attention_output_bias * hidden
    norms = sizes.qk_norm * (2 * (queries // sizes.num_attention_heads) if sizes.qk_norm_per_head else queries + keys)
    return hidden * (2 * queries + gates + 2 * keys) + biases + norms


def maps(sizes: Sizes, read: int, keys: int) -> int:
    """Count the multiply-adds of queries, outputs and their gates, and of keys and values."""
    of_queries = (2 + sizes.attention_output_gate) * read * sizes.query_width
    return sizes.hidden_size * (of_queries + 2 * keys * sizes.key_width)


def scores(sizes: Sizes, work: Work, keys: int) -> int:
    """Count the multiply-adds of queries with a number of keys, and of weights with as many values."""
    return 2 * work.read * keys * sizes.query_width


def key_width(sizes: Sizes) -> int:
    """Return the width of what a cache keeps of a token as keys, and as values."""
    return sizes.key_width

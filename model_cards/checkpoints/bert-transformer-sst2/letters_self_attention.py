"""`s`: self-attention."""

from .letters_attention import TENSOR_PARALLEL_PLAN, key_width, maps, parameters, scores
from .letters_letter import Letter, Sizes, Work


def folds(sizes: Sizes, work: Work) -> bool:
    """Say whether the only query is compared with states, without keys and values of all tokens."""
    return work.read == 1 < work.length and not work.keeps_cache and sizes.folds_attention


def _parameters(sizes: Sizes) -> int:
    if sizes.memory_length is not None:
        return 5 * sizes.hidden_size**2
    return parameters(sizes) + sizes.distances * (sizes.query_width // sizes.num_attention_heads)


def _multiply_adds(sizes: Sizes, work: Work) -> int:
    if sizes.distances:
        # rows of distances are those of all tokens, so all queries are computed
        work = work._replace(read=work.length)
    return self_maps(sizes, work) + self_scores(sizes, work) + work.read * sizes.distances * sizes.query_width


def self_scores(sizes: Sizes, work: Work) -> int:
    """Count the products of tokens with tokens."""
    if sizes.memory_length is not None:
        # content, distances, mix
        return 3 * sizes.hidden_size * work.length * (work.length + sizes.memory_length)
    if folds(sizes, work):
        # each head's scores and mix of whole states
        return 2 * sizes.hidden_size * sizes.num_attention_heads * work.length
    return scores(sizes, work, work.length + work.cached)


def self_maps(sizes: Sizes, work: Work) -> int:
    """Count the multiply-adds of the linear maps."""
    if sizes.memory_length is not None:
        # queries and output; keys, values and distances. Rows of distances follow each other, so all queries are
        # computed
        tokens = work.length + work.read + 3 * (work.length + sizes.memory_length)
        return tokens * sizes.hidden_size**2
    if folds(sizes, work):
        # query, output and its gate, and the maps of keys and values for one token
        return (4 + sizes.attention_output_gate) * sizes.hidden_size * sizes.query_width
    return maps(sizes, work.read, work.length)


LETTER = Letter(
    name="self-attention",
    colour="#7fc97f",
    square="🟩",
    group="self-attention",
    cache="self",
    parameters=_parameters,
    multiply_adds=_multiply_adds,
    cache_width=key_width,
    tensor_parallel_plan=TENSOR_PARALLEL_PLAN | {"distance_proj": "replicated_with_grad_allreduce"},
)

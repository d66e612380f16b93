import pytest
from hypothesis import given, strategies as st

from sublayers.configuration.letters.local_attention import block_size
from sublayers.configuration.order import interleaved, par
from sublayers.configuration.sublayer_cost import cache_bytes, flops, memory_bytes, parameters, read_positions

BERT_BASE = {"hidden_size": 768, "intermediate_size": 3072}


def naive_flops(letters, d, i, length, read, source, width=31, heads=16, gated=True, cached=False):
    """Count by position: each product of matrices is a list of (rows, inner, columns)."""
    mixers = [index for index, letter in enumerate(letters) if letter != "f"]
    total = 0
    for index, letter in enumerate(letters):
        # a position is computed if somebody reads it: the caller, or a sublayer further on that mixes positions
        is_mixed_later = any(later > index and letters[later] != "m" for later in mixers) or "m" in letters[index + 1 :]
        # every m sees the states in front of the first one, and is computed for nobody else
        is_mixed_later = is_mixed_later and "m" not in letters[: index + 1]
        rows = len([p for p in range(length) if is_mixed_later or p < read])
        if letter == "f":
            products = [(rows, d, i), (rows, i, d)]
        elif letter in "dl":
            # values and gate, all kernels, a sum over each kernel for each channel, output
            kernels = [(length, d, heads)] * width if letter == "d" else []
            products = [(length, d, d)] * (1 + gated) + [*kernels, *[(length, width, 1)] * d, (rows, d, d)]
        else:
            keys = {"s": length, "m": length, "c": source}[letter]
            products = [(rows, d, d), (keys, d, d), (keys, d, d), (rows, d, keys), (rows, keys, d), (rows, d, d)]
            if letter in "sm" and rows == 1 < length and not cached:
                # the query takes the map of the keys, the mix that of the values; each head sees whole states
                products = [(1, d, d)] * 4 + [(heads, d, keys), (heads, keys, d)]
        total += sum(2 * m * k * n for m, k, n in products)
    return total


@given(
    st.text("scfdl", min_size=1, max_size=12),
    st.text("mcf", max_size=6),
    st.integers(1, 9),
    st.integers(1, 9),
    st.data(),
)
def test_flops_against_a_naive_count(order, tail, d, i, data):
    # an m needs something in front of it that mixes tokens
    order += tail if {*order} & {*"sdl"} else ""
    length, source = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 12))
    read = data.draw(st.integers(0, length))
    assert flops(order, d, i, length, read, source) == naive_flops(order, d, i, length, read, source)
    assert flops(order, d, i, length, read) == naive_flops(order, d, i, length, read, length)
    assert flops(order, d, i, length, read, keeps_cache=True) == naive_flops(
        order, d, i, length, read, length, cached=True
    )
    width, heads = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 4))
    kernels = (width, heads, data.draw(st.booleans()))
    assert flops(order, d, i, length, read, source, *kernels) == naive_flops(
        order, d, i, length, read, source, *kernels
    )


@pytest.mark.parametrize("read", [-1, 9])
def test_only_positions_that_exist_can_be_read(read):
    with pytest.raises(ValueError, match=f"read={read} is out of range; of 8 tokens"):
        flops("sf", 4, 16, 8, read)


def test_parameters_of_published_models():
    # what remains of 109,482,240 and 126,002,688 without the embeddings and the pooler of BERT base
    embeddings_and_pooler = (30_522 + 512 + 2 + 2) * 768 + (768 + 1) * 768
    assert parameters(interleaved(12), **BERT_BASE) == 109_482_240 - embeddings_and_pooler
    assert parameters(par(24, 5), **BERT_BASE) == 126_002_688 - embeddings_and_pooler


def test_parameters_of_convolutions():
    # counted from a checkpoint of fairseq's: 4 heads, kernels of 7, norms included
    linears = 64 * 32 + 64 + 32 * 32 + 32
    assert parameters("d", 32, 24, kernel_size=7, num_attention_heads=4) == linears + 28 * 32 + 64
    assert parameters("l", 32, 24, kernel_size=7, num_attention_heads=4) == linears + 4 * 1 * 7 + 64
    ungated = linears - 32 * 32 - 32
    assert parameters("d", 32, 24, 7, 4, gated_convolutions=False) == ungated + 28 * 32 + 64
    assert parameters("l", 64, 24) == 3 * 64 * 64 + 3 * 64 + 16 * 31 + 128
    assert parameters("dsl", 64, 24) == sum(parameters(letter, 64, 24) for letter in "dsl")


def test_transformer_xl_costs_what_the_paper_says():
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "memory_length": 640}
    # 64 tokens, and beside the sublayers 20,000 columns of the output
    head = 2 * 64 * 512 * 20_000
    orders = (interleaved(16), par(32, 5))
    gigaflops = [(flops(order, **sizes, length=64, read=64) + head) / 1e9 for order in orders]
    assert gigaflops == [pytest.approx(26.6, abs=0.05), pytest.approx(16.2, abs=0.05)]
    # of the output's bands nothing changes
    growth = parameters(orders[1], **sizes) - parameters(orders[0], **sizes)
    assert growth == 199_840_218 - 191_950_298
    assert [memory_bytes(order, 512, 640) for order in orders] == [16 * 640 * 512 * 2, 6 * 640 * 512 * 2]
    assert memory_bytes("sf2", 8, 10, bytes_per_number=4) == 8 * 10 * 4
    assert memory_bytes("f3", 8, 10) == 0


def test_memory_is_attentions_alone():
    for letter in "cfdl":
        plain, with_memory = (flops(letter, 8, 24, 6, 6, memory_length=length) for length in (None, 10))
        assert plain == with_memory
        assert parameters(letter, 8, 24) == parameters(letter, 8, 24, memory_length=10)
    # no memory yet, but distances
    assert flops("s", 8, 24, 6, 6, memory_length=0) == flops("s", 8, 24, 6, 6) + 2 * (6 * 8 * 8 + 6 * 6 * 8)


def test_par_bert_classifies_at_six_tenths_of_the_cost_of_bert():
    sizes = {**BERT_BASE, "length": 128, "num_attention_heads": 12}
    bert, par_bert = (flops(order, **sizes, read=1) for order in (interleaved(12), par(24, 5)))
    assert par_bert / bert == pytest.approx(0.60, abs=0.005)
    # 11 of its 24 sublayers run on one token: two of the fifth group, and the nine after it
    full, d, i, n = flops(par(24, 5), **sizes, read=128), 768, 3072, 128
    saved_in_the_tail = 11 * (n - 1) * 2 * 2 * d * i
    # all its maps run on one token, but each of 12 heads mixes whole states
    saved_in_the_last_attention = 2 * ((n - 1) * 4 * d * d + 2 * n * n * d - 12 * 2 * n * d)
    assert full - par_bert == saved_in_the_tail + saved_in_the_last_attention


def test_cache_of_self_and_cross_attention():
    assert cache_bytes("s2f", hidden_size=8, length=10) == 2 * (2 * 8 * 2 * 10)
    assert cache_bytes("s2c3f", hidden_size=8, length=10, source_length=7) == 2 * 8 * 2 * (2 * 10 + 3 * 7)
    assert cache_bytes("sc", 8, 10) == cache_bytes("sc", 8, 10, source_length=10)
    assert cache_bytes("s", 8, 10, bytes_per_number=4) == 2 * 8 * 4 * 10
    assert cache_bytes("f9", 8, 10) == 0
    # a convolution has a slot like self-attention's
    assert cache_bytes("dlsc", 8, 10, source_length=7) == 3 * cache_bytes("s", 8, 10) + cache_bytes("c", 8, 7)


@pytest.mark.parametrize(("length", "masked"), [(1, 1), (20, 3), (21, 4), (100, 15), (128, 20), (512, 77), (700, 105)])
def test_read_positions(length, masked):
    assert read_positions(length) == {"every": length, "15 %": masked, "one": 1}


@pytest.mark.parametrize(
    ("length", "before", "after", "size"),
    [(10_000, 64, 64, 64), (10_000, 256, 256, 128), (10_000, 511, 0, 64), (768, 256, 256, None), (1280, 256, 256, 128)],
)
def test_local_attention_runs_in_blocks_where_a_text_is_twice_as_long_as_the_keys_of_one(length, before, after, size):
    assert block_size(length, before, after) == size

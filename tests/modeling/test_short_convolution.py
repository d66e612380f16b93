"""What a cache keeps of gated short convolutions, and how new ones begin."""

import pytest
import torch
from common import tokens
from families import ROWS
from transformers import AutoModel, DynamicCache

from sublayers.configuration.sublayer_cost import cache_bytes, flops

ROW = ROWS["sandwich_lm short convolutions"]


@pytest.mark.parametrize("kernel_size", [2, 3, 6])
@torch.no_grad()
def test_a_cache_keeps_what_the_kernel_needs_however_long_the_text_is(kernel_size):
    model = ROW.main("gfsgf", short_kernel_size=kernel_size)
    cache = DynamicCache(config=model.config)
    sizes = model.config.sizes._asdict()
    for length in (1, 2, 9):
        model(tokens(1, length), cache=cache, use_cache=True)
        states = [layer.conv_states[0].numel() for layer in (cache.layers[0], cache.layers[2])]
        keys = 2 * cache.layers[1].keys.numel()
        counted = cache_bytes(model.config.order, length=cache.get_seq_length(), bytes_per_number=1, **sizes)
        assert sum(states) + keys == counted
        assert states == [16 * (kernel_size - 1)] * 2
    assert model.config.layer_types == ["conv", "full_attention", "conv"]
    # where nothing else does, they count tokens
    assert ROW.config("gfg").layer_types == ["hybrid", "hybrid"]


def test_counts_the_products_of_its_maps_and_kernels():
    fields = {"letter_fields": {"short_kernel_size": 3}}
    maps = 2 * 8 * (9 * 3 * 8 + 2 * 8)
    assert flops("gf", 8, 0, 9, 2, **fields) == maps + 2 * 9 * 8 * 3


def test_new_kernels_leave_sums_as_large_as_what_is_summed(tmp_path):
    ROW.build(AutoModel, "sf").save_pretrained(tmp_path)
    model = AutoModel.from_pretrained(tmp_path, sublayer_order="gfg", short_kernel_size=4)
    kernels = torch.cat([layer.mixer.kernel for layer in model.layers if hasattr(layer.mixer, "kernel")])
    assert len(kernels) == 32
    assert kernels.norm(dim=1).square().mean().item() == pytest.approx(1, rel=0.5)

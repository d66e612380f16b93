"""What sublayers of today's parts cost, counted in tensors and by torch."""

import itertools
from typing import Any

import pytest
import torch
from common import randomize, tokens
from families import EXPERTS, small
from torch.nn.attention import SDPBackend
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache

from sublayers import (
    MacaronBertConfig,
    MacaronBertModel,
    PARBertConfig,
    PARBertModel,
    PARTransformerXLConfig,
    PARTransformerXLModel,
    SandwichLMConfig,
    SandwichLMModel,
    SandwichSeq2SeqConfig,
    SandwichSeq2SeqModel,
)
from sublayers.configuration.sublayer_cost import cache_bytes, flops, parameters
from sublayers.modeling.plan import Plan
from sublayers.modeling.stack import SublayerStack

PARTS = [
    {},
    {"norm_type": "rms", "norm_position": "both"},
    {"norm_bias": False, "qk_norm": True},
    {"num_key_value_heads": 2, "qk_norm": True, "qk_norm_per_head": False},
    {"norm_affine": False, "gated_feed_forward": True, "mlp_bias": False},
    {"num_key_value_heads": 2, "attention_bias": False},
    {"attention_output_gate": True, "attention_bias": False},
    {"num_key_value_heads": 2, "head_dim": 12, "attention_output_gate": True, "qk_norm": True},
    {"head_dim": 12, "attention_output_bias": False},
    {"num_key_value_heads": 1, "head_dim": 4, "qk_norm": True, "gated_feed_forward": True},
    {"position_embedding_type": "rotary", "num_key_value_heads": 2},
    {"relative_key_distance": 2, "num_key_value_heads": 2},
]
SHORT = {"sublayer_order": "gfsgff", "short_kernel_size": 3}
WIDTHS = {"intermediate_size": [40, 24, 8], "gated_feed_forward": True}
ROUTED = EXPERTS | {"sublayer_order": "sesefee", "experts_implementation": "batched_mm"}


@pytest.mark.parametrize(
    ("config_class", "body_class", "parts"),
    [
        *((SandwichLMConfig, SandwichLMModel, parts) for parts in [*PARTS, ROUTED, ROUTED | {"num_experts": 3}]),
        *((SandwichSeq2SeqConfig, SandwichSeq2SeqModel, parts) for parts in PARTS),
        (MacaronBertConfig, MacaronBertModel, {"norm_type": "rms", "gated_feed_forward": True}),
        (PARBertConfig, PARBertModel, WIDTHS),
        (SandwichLMConfig, SandwichLMModel, SHORT),
        (PARTransformerXLConfig, PARTransformerXLModel, {"norm_type": "rms", "gated_feed_forward": True}),
    ],
)
def test_parameters_are_those_of_the_tensors(config_class, body_class, parts):
    with torch.device("meta"):
        body = body_class(small(config_class, **parts))
    for stack in [module for module in body.modules() if isinstance(module, SublayerStack)]:
        counted = sum(parameter.numel() for parameter in stack.parameters())
        assert parameters(stack.order, **body.config.sizes._asdict()) == counted


@pytest.mark.parametrize(("parts", "read"), itertools.product([*PARTS, WIDTHS, ROUTED], [9, 3, 1]))
@torch.no_grad()
def test_flops_are_those_that_torch_counts(parts, read):
    model = randomize(PARBertModel(small(PARBertConfig, **parts), add_pooling_layer=False))
    model.set_attn_implementation("eager")
    ids, counter = tokens(1, 9), FlopCounterMode(display=False)
    # it does not know torch's operators of oneDNN
    with torch.backends.mkldnn.flags(enabled=False), counter:
        model(ids, plan=Plan.of(ids, read=torch.arange(read)[None]))
    config = model.config
    counted = flops(config.sublayer_order, length=9, read=read, **config.sizes._asdict())
    assert counter.get_total_flops() == counted


@pytest.mark.parametrize("positions", ["learned", "rotary"])
@pytest.mark.parametrize("read", [200, 30, 1])
@pytest.mark.parametrize("length", [200, 21])
@pytest.mark.parametrize("order", ["fwfsfwfwff", "(wf)3", "wsf"])
@torch.no_grad()
def test_flops_of_local_attention_are_those_that_torch_counts(order, length, read, positions):
    if read > length:
        pytest.skip("so many are not there")
    options = {"sublayer_order": order, "position_embedding_type": positions, "max_position_embeddings": 256}
    families: list[tuple[Any, Any, dict[str, Any]]] = [
        (PARBertConfig, PARBertModel, {"add_pooling_layer": False}),
        (SandwichLMConfig, SandwichLMModel, {}),
    ]
    for config_class, body_class, more in families:
        model = randomize(body_class(small(config_class, attention_window=10, use_cache=False, **options), **more))
        ids, counter = tokens(1, length), FlopCounterMode(display=False)
        # what a decoder reads last, an encoder reads first
        kept = torch.arange(read)[None] + (length - read) * (config_class is SandwichLMConfig)
        # torch counts what its spelled-out kernel does
        with torch.backends.mkldnn.flags(enabled=False), torch.nn.attention.sdpa_kernel(SDPBackend.MATH), counter:
            model(ids, plan=Plan.of(ids, read=kept if read < length else None))
        counted = flops(order, length=length, read=read, **model.config.sizes._asdict())
        assert counter.get_total_flops() == counted, config_class


@pytest.mark.parametrize("parts", PARTS, ids=lambda parts: "-".join(parts) or "papers")
@torch.no_grad()
def test_a_cache_holds_as_many_bytes(parts):
    model = randomize(SandwichLMModel(small(SandwichLMConfig, **parts)))
    cache: DynamicCache = model(tokens(1, 9), use_cache=True).cache
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    order = model.config.sublayer_order
    assert held == cache_bytes(order, length=9, bytes_per_number=4, **model.config.sizes._asdict())
    both = randomize(SandwichSeq2SeqModel(small(SandwichSeq2SeqConfig, **parts)))
    caches = both(tokens(1, 9), decoder_input_ids=tokens(1, 5), use_cache=True).cache
    layers = [*caches.self_attention_cache.layers, *caches.cross_attention_cache.layers]
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in layers if layer.is_initialized)
    order = both.config.decoder_sublayer_order
    assert held == cache_bytes(order, length=5, source_length=9, bytes_per_number=4, **both.config.sizes._asdict())


@pytest.mark.parametrize("parts", [{}, {"num_key_value_heads": 2, "gated_feed_forward": True}])
@torch.no_grad()
def test_flops_of_the_next_token_are_those_that_torch_counts(parts):
    config = small(SandwichLMConfig, sublayer_order="sfwfsf", attention_window=4, **parts)
    model, ids = randomize(SandwichLMModel(config)), tokens(1, 10)
    model.set_attn_implementation("eager")
    cache, counter = DynamicCache(config=config), FlopCounterMode(display=False)
    with torch.backends.mkldnn.flags(enabled=False):
        model(ids[:, :9], cache=cache, use_cache=True)
        with counter:
            model(ids[:, 9:], cache=cache, use_cache=True)
    counted = flops(config.sublayer_order, length=1, read=1, cached=9, keeps_cache=True, **config.sizes._asdict())
    assert counter.get_total_flops() == counted

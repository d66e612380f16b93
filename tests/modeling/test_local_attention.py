"""Local attention: in the orders of transformers' models of the same weights, and computed only where it is read."""

import pytest
import torch
from common import gradients, randomize, tokens
from torch import nn
from transformers import DynamicCache, MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM

from sublayers import (
    IOTSeq2SeqConfig,
    IOTSeq2SeqForConditionalGeneration,
    PARBertConfig,
    PARBertForSequenceClassification,
    PARBertModel,
    SandwichLMConfig,
    SandwichLMForSequenceClassification,
)
from sublayers.configuration.letters.letter import Sizes
from sublayers.configuration.order import Order
from sublayers.configuration.sublayer_cost import cache_bytes
from sublayers.convert.llama import from_llama
from sublayers.modeling.mixers.local_attention import Window

SIZES = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
SIZES |= {"max_position_embeddings": 400, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
PARTS = dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0)
PARTS |= dict.fromkeys(("attention_bias", "attention_output_bias", "mlp_bias", "scale_embedding"), False)
PARTS |= {"position_embedding_type": "rotary", "gated_feed_forward": True, "hidden_act": "silu", "final_norm": True}
# long enough for blocks; tests of conversion read short texts
LONG = 300


@pytest.fixture(params=["mistral", "qwen2"])
def pair(request):
    """A decoder of transformers with windows, and ours of the same weights."""
    options = SIZES | {"num_hidden_layers": 3, "tie_word_embeddings": False, "num_key_value_heads": 2}
    if request.param == "mistral":
        source = MistralForCausalLM(MistralConfig(**options, sliding_window=5))
    else:
        kinds = ["sliding_attention", "full_attention", "sliding_attention"]
        windows = {"use_sliding_window": True, "sliding_window": 6, "layer_types": kinds}
        source = Qwen2ForCausalLM(Qwen2Config(**options, **windows))
    model, _ = from_llama(randomize(source))
    assert model.config.sublayer_order == ("(wf)3" if request.param == "mistral" else "wfsfwf")
    return source, model


def padded(length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and their mask: the second row is padded on its left, the third on its right."""
    mask = torch.ones(3, length, dtype=torch.long)
    mask[1, : length // 3] = mask[2, -length // 4 :] = 0
    return tokens(3, length), mask


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
def test_long_texts_are_read_in_blocks(pair, backend):
    source, model = pair
    model.set_attn_implementation(backend)
    ids, mask = padded(LONG)
    places = (mask.cumsum(-1) - 1).clamp(min=0)
    wanted = source(ids, attention_mask=mask, position_ids=places).logits[mask.bool()]
    found = model(ids, attention_mask=mask).logits[mask.bool()]
    scale = wanted.abs().max().detach()
    torch.testing.assert_close(found / scale, wanted / scale, atol=1e-5, rtol=1e-5)
    for logits in (wanted, found):
        (logits / scale).square().mean().backward()
    source, model = (gradients(network) for network in pair)
    # they come through all sublayers
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        torch.testing.assert_close(model[name], source[name], atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_reads_few_positions_of_long_texts(pair):
    source, model = pair
    ids, mask = padded(LONG)
    wanted = source(ids, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp(min=0)).logits
    for kept in ([[LONG - 1], [LONG - 2], [0]], [[0], [LONG // 3], [LONG // 2]]):
        kept = torch.tensor(kept)
        found = model(ids, attention_mask=mask, logits_to_keep=kept).logits
        torch.testing.assert_close(found, torch.take_along_dim(wanted, kept[..., None], 1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("cache", [{}, {"cache_implementation": "static"}, {"use_cache": False}, {"num_beams": 3}])
def test_continuations_of_long_texts(pair, cache):
    ids = tokens(3, 160)
    ids[1, :53] = 1
    options = {"max_new_tokens": 9, "min_new_tokens": 9, "do_sample": False, **cache}
    wanted, found = (network.generate(ids, attention_mask=(ids != 1).long(), **options) for network in pair)
    assert torch.equal(found, wanted)


def test_a_cache_holds_what_the_next_token_sees(pair):
    _, model = pair
    config, ids = model.config, tokens(1, 40)
    cache = DynamicCache(config=config)
    model(ids, cache=cache, use_cache=True)
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert held == cache_bytes(config.sublayer_order, length=40, bytes_per_number=4, **config.sizes._asdict())


@pytest.mark.parametrize("padding", [False, True])
def test_only_the_window_of_what_is_read_is_computed(padding):
    fields = SIZES | PARTS | {"sublayer_order": "fsfwfwf", "position_embedding_type": "none"}
    causal = SandwichLMForSequenceClassification(SandwichLMConfig(**fields, attention_window=4)).eval()
    both = PARBertForSequenceClassification(PARBertConfig(**fields, attention_window=6)).eval()
    ids, mask = padded(40)
    real = [40, 27, 30] if padding else [40, 40, 40]
    for model in (causal, both):
        seen = []
        for layer in model.model.layers:
            layer.mixer.register_forward_hook(lambda _, args, out, seen=seen: seen.append(out[0][..., 0].numel()))
        model(ids, attention_mask=mask if padding else None)
        # three tokens further from window to window, in front of the last token or behind the first
        assert seen == [sum(real), 3 * 7, 3 * 7, 3 * 4, 3 * 4, 3, 3]


@pytest.mark.parametrize("side", ["left", "right"])
def test_rows_that_are_shorter_than_windows_read_as_alone(side):
    fields = SIZES | PARTS | {"sublayer_order": "swfwf", "attention_window": 12}
    mask = (torch.arange(30) < torch.tensor([30, 2, 17, 5])[:, None]).long()
    mask = mask.flip(1) if side == "left" else mask
    ids = tokens(4, 30)
    for model in (
        SandwichLMForSequenceClassification(SandwichLMConfig(**fields)),
        PARBertForSequenceClassification(PARBertConfig(**fields)),
    ):
        randomize(model)
        with torch.no_grad():
            together = model(ids, attention_mask=mask).logits
            alone = torch.cat([model(ids[i][mask[i].bool()][None]).logits for i in range(4)])
        torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)


def test_rows_in_different_orders_keep_their_windows():
    fields = SIZES | PARTS | {"encoder_orders": ["wf", "fw"], "decoder_orders": ["wcf", "fwc"], "attention_window": 4}
    fields |= {"num_encoder_blocks": 2, "num_decoder_blocks": 1}
    model = randomize(IOTSeq2SeqForConditionalGeneration(IOTSeq2SeqConfig(**fields)))
    ids, mask = padded(20)
    target = tokens(3, 11)
    with torch.no_grad():
        together = model(ids, attention_mask=mask, decoder_input_ids=target).logits
        for i in range(3):
            own = ids[i][mask[i].bool()][None]
            alone = model(own, decoder_input_ids=target[i : i + 1]).logits
            torch.testing.assert_close(together[i : i + 1], alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("order", "windows"),
    [
        ("(sf)3", {4: 0}),
        ("fswfwff", {1: 2, 2: 1, 4: 0}),
        ("(wf)2", {-1: 2, 0: 1, 2: 0}),
        ("wsf", {1: 0}),
        ("f3", {-1: 0}),
        ("wdwcf", {1: 1, 2: 0}),
    ],
)
def test_tokens_matter_as_far_as_the_windows_behind_reach(order, windows):
    sizes = Sizes(8, attention_window=5)
    assert Order(order).reaches(sizes) == {place: (2 * number, 2 * number) for place, number in windows.items()}
    before = {place: (4 * number, 0) for place, number in windows.items()}
    assert Order(order).reaches(sizes._replace(is_causal=True)) == before


@pytest.mark.parametrize("size", [1, 5, 64])
@pytest.mark.parametrize(("before", "after"), [(3, 0), (2, 2), (0, 0), (9, 1)])
def test_blocks_are_the_rows_of_the_mask(size, before, after):
    length = 23
    real = torch.rand(2, length, generator=torch.Generator().manual_seed(0)) < 0.7
    window = Window(before, after, torch.arange(length)[None], real)
    wanted = window.mask[:, 0]
    blocks = window.blocks(2, size)[:, 0].unflatten(0, (2, -1))
    for row in range(2):
        for query in range(length):
            block, place = divmod(query, size)
            # where the keys of the block begin
            keys = block * size - before + torch.arange(blocks.shape[-1])
            seen = keys[blocks[row, block, place]]
            assert seen.tolist() == wanted[row, query].nonzero()[:, 0].tolist()


def test_the_first_sublayer_may_lack_a_norm():
    config = PARBertConfig(sublayer_order="sf", first_norm=False, norm_position="pre", **SIZES)
    layers = PARBertModel(config).layers
    assert [type(layer.norm) for layer in layers] == [nn.Identity, nn.LayerNorm]

import pytest
import torch
from common import assert_same, tokens
from common_generation import sources
from common_naive import naive_convolution
from families import CONVOLUTIONS, ROWS
from torch.nn.attention.flex_attention import create_block_mask
from transformers import AutoModel, EncoderDecoderCache, StaticCache

from sublayers import SandwichSeq2SeqConfig, SandwichSeq2SeqModel, expand
from sublayers.configuration.order import Order
from sublayers.configuration.parallel_plans import tensor_parallel_plan
from sublayers.configuration.sublayer_cost import parameters
from sublayers.modeling.instance_wise_stack import InstanceWiseStack
from sublayers.modeling.mixers import convolution
from sublayers.modeling.mixers.convolution import Convolution, find_tokens
from sublayers.modeling.mixers.mixer import Batch
from sublayers.modeling.plan import Packing, Plan
from sublayers.modeling.stack import SublayerStack

pytestmark = pytest.mark.slow
ROW = ROWS["convolutions"]


@pytest.mark.full
def test_steps_with_a_static_cache_compile_in_one_graph():
    model = ROW.main("df", "dcsl")
    config, compiled = model.config, torch.compile(model, fullgraph=True, backend="aot_eager")
    target = tokens(3, 5)
    batch = sources(model)
    expected = model(**batch, decoder_input_ids=target).logits
    cache = EncoderDecoderCache(StaticCache(config, max_cache_len=8), StaticCache(config, max_cache_len=9))
    given = {"encoder_outputs": model.get_encoder()(**batch), "attention_mask": batch["attention_mask"]}
    given["cache"] = cache
    model(**given, decoder_input_ids=target[:, :2])
    for i in (2, 3, 4):
        logits = compiled(**given, decoder_input_ids=target[:, i : i + 1]).logits
        torch.testing.assert_close(logits[:, 0], expected[:, i])
    torch.compiler.reset()


def test_counts_what_it_has():
    for encoder, decoder in CONVOLUTIONS:
        config = ROW.config(encoder, decoder, kernel_sizes=[5])
        model = SandwichSeq2SeqModel(config)
        for stack, order in ((model.encoder, encoder), (model.decoder, decoder)):
            expected = sum(parameter.numel() for parameter in stack.layers.parameters())
            assert parameters(order, 16, 24, 5, 4, config.gated_convolutions) == expected
        slots = [
            layer.mixer.layer_idx
            for layer, letter in zip(model.decoder.layers, decoder, strict=True)
            if letter in "sdl"
        ]
        assert slots == [*range(len(slots))]
        assert config.num_hidden_layers == max(len(slots), decoder.count("c"))


def test_convolutions_of_a_stack_have_the_widths_of_the_list_in_turn():
    model = ROW.main("s(df)2l2", "dcs(lcf)4", kernel_sizes=[3, 5, 2])
    for stack, widths in ((model.model.encoder, [3, 5, 2, 2]), (model.model.decoder, [3, 5, 2, 2, 2])):
        mixers = [layer.mixer for layer in stack.layers if isinstance(layer.mixer, Convolution)]
        assert [mixer.weight_proj.out_features for mixer in mixers] == [4 * width for width in widths]
    assert SandwichSeq2SeqConfig().kernel_sizes == [3, 7, 15, 31]


def test_kernels_lose_weights_in_training_only():
    for letter in "dl":
        model = ROW.build(AutoModel, letter, f"{letter}c", attention_dropout=1.0)
        mixer = model.encoder.layers[0].mixer
        states = torch.randn(2, 5, 16)
        assert not torch.allclose(mixer(states)[0], mixer.out_proj.bias.expand(2, 5, -1))
        torch.testing.assert_close(mixer.train()(states)[0], mixer.out_proj.bias.expand(2, 5, -1))


def test_new_convolutions_start_small(tmp_path):
    ROW.build(AutoModel, "sf", "scf").save_pretrained(tmp_path)
    model = AutoModel.from_pretrained(tmp_path, encoder_sublayer_order="dl", decoder_sublayer_order="lcd")
    kernels = [p for name, p in model.named_parameters() if name.endswith("weight_proj.weight")]
    assert len(kernels) == 4
    assert all(0 < kernel.abs().max() < 0.2 for kernel in kernels)


@pytest.mark.parametrize("width", [1, 3, 4, 9])
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("is_dynamic", [True, False])
@pytest.mark.parametrize("is_gated", [True, False])
@pytest.mark.parametrize("block", [2, 64])
def test_equals_a_naive_loop(width, is_causal, is_dynamic, is_gated, block, monkeypatch):
    monkeypatch.setattr(convolution, "BLOCK", block)
    config = SandwichSeq2SeqConfig(hidden_size=12, num_attention_heads=3, gated_convolutions=is_gated)
    torch.manual_seed(0)
    mixer = Convolution(config, 0, width, is_causal, is_dynamic)
    states = torch.randn(2, 5, 12, requires_grad=True)
    probe = torch.randn(2, 5, 12)
    found = []
    for naive in (False, True):
        mixer.zero_grad()
        states.grad = None
        if naive:
            rows = [naive_convolution(dict(mixer.named_parameters()), "", row, 3, is_causal) for row in states]
            output = torch.stack([torch.stack(row) for row in rows])
        else:
            output, weights = mixer(states)
            assert weights is None
        (output * probe).sum().backward()
        grads = {name: p.grad.clone() for name, p in mixer.named_parameters()}
        found.append(grads | {"states": states.grad.clone(), "output": output.detach()})
    assert_same(*found, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("is_dynamic", [True, False])
def test_memory_grows_with_the_length_alone(is_dynamic):
    def count(length: int) -> int:
        kept = []

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            kept.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, keep):
            mixer(torch.randn(1, length, 16, requires_grad=True))
        return sum(kept)

    mixer = Convolution(SandwichSeq2SeqConfig(hidden_size=16, num_attention_heads=4), 0, 31, False, is_dynamic)
    assert count(2048) < 2.1 * count(1024)


def test_tensors_of_compiled_graphs_grow_with_the_length_alone():
    largest = []

    def measure(graph, inputs):
        values = (node.meta.get("example_value") for node in graph.graph.nodes)
        largest.append(max(value.numel() for value in values if isinstance(value, torch.Tensor)))
        return graph

    compiled = torch.compile(convolution.convolve, backend=measure, fullgraph=True, dynamic=False)
    for length in (512, 1024):
        given = torch.randn(1, 2, length + 6, 4), torch.randn(1, 2, length, 7)
        torch.testing.assert_close(compiled(*given), convolution.convolve(*given))
    assert largest[1] < 2.1 * largest[0]


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("order", ["sdf", "fl", "ldff"])
def test_positions_that_nobody_reads_leave_the_stack_at_the_last_convolution(order, packed):
    config = SandwichSeq2SeqConfig(hidden_size=16, intermediate_size=24, num_attention_heads=4)
    config._attn_implementation = "sdpa"
    stack = SublayerStack(config, Order(order), is_causal=False).eval()
    states, read = torch.randn(3, 6, 16), torch.tensor([[0, 5], [3, 4], [1, 2]])
    mask = torch.ones(3, 6, dtype=torch.long)
    if packed:
        mask[0, 1:3] = mask[2, 3:] = 0
    full = stack(states, Batch(states, Plan.of(states, mask), mask))
    rows = []
    stack[-1].mixer.register_forward_hook(lambda _, args, out: rows.append(out[0][..., 0].numel()))
    torch.testing.assert_close(
        stack(states, Batch(states, Plan.of(states, mask, read), mask)),
        full.gather(1, read[..., None].expand(-1, -1, 16)),
    )
    assert rows == [6]


def test_several_orders_run_the_same_convolutions():
    config = SandwichSeq2SeqConfig(hidden_size=16, intermediate_size=24, num_attention_heads=4, kernel_sizes=[3, 5])
    stack = InstanceWiseStack(config, [Order("dlfd"), Order("fddl")], is_causal=True).eval()
    alone = SublayerStack(config, Order("fddl"), is_causal=True).eval()
    # the second order's sublayers by their places in the first
    for place, layer in zip([2, 0, 3, 1], alone, strict=True):
        layer.mixer = stack[place].mixer
        layer.norm = stack[place].norm
    states = torch.randn(2, 6, 16)
    batch = Batch(states, Plan.of(states))
    torch.testing.assert_close(stack(states, batch, order=1), alone(states, batch))
    assert not torch.allclose(stack(states, batch, order=0), alone(states, batch))


def test_padding_inside_a_packing_counts_as_zeros():
    config = SandwichSeq2SeqConfig(hidden_size=16, num_attention_heads=4)
    mixer = Convolution(config, 0, 3, is_causal=True, is_dynamic=True)
    states = torch.randn(1, 4, 16)
    packing = Packing(1, 4, torch.arange(4))
    tokens_seen = torch.tensor([[False, False, True, True]])
    expected = mixer(states[:, 2:])[0]
    torch.testing.assert_close(mixer(states, tokens=tokens_seen, packing=packing)[0][:, 2:], expected)


def test_finds_tokens_after_a_past_in_the_mask_of_any_backend():
    real = torch.tensor([[1, 1, 0, 0, 1], [0, 1, 1, 1, 1], [1, 0, 1, 1, 1]]).bool()

    def sees(row, head, query, key):
        return (key <= query + 2) & real[row, key]

    rows, queries, keys = torch.arange(3)[:, None, None], torch.arange(3)[:, None], torch.arange(5)
    dense = sees(rows, 0, queries, keys)[:, None]
    numbers = torch.zeros(3, 1, 3, 5).masked_fill(~dense, torch.finfo(torch.float32).min)
    blocks = create_block_mask(sees, 3, None, 3, 5, device="cpu")
    for mask in (real.long(), dense, numbers, blocks):
        assert find_tokens(mask, 3, 2).tolist() == real[:, 2:].tolist()


def test_convolutions_are_not_split_between_processes():
    config = SandwichSeq2SeqConfig()
    assert tensor_parallel_plan(config, Order("dclf")) == tensor_parallel_plan(config, Order("cf"))
    assert expand("(dl)2") == "dldl"

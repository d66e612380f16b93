import pytest
import torch
from common import FamilyContract, assert_same, tokens
from common_naive import NaiveSeq2Seq
from common_seq2seq import Seq2SeqContract, padded, random_decoder
from common_seq2seq_generation import BEAMS, GREEDY, Seq2SeqGenerationContract
from common_seq2seq_training import Seq2SeqTrainingContract
from torch.nn.attention.flex_attention import create_block_mask
from transformers import AutoModel, AutoModelForSeq2SeqLM, DynamicCache, EncoderDecoderCache, StaticCache

from sublayers import (
    MacaronBertConfig,
    SandwichLMConfig,
    SandwichSeq2SeqConfig,
    SandwichSeq2SeqForConditionalGeneration,
    SandwichSeq2SeqModel,
    expand,
)
from sublayers.configuration.order import Order
from sublayers.configuration.sublayer_cost import parameters
from sublayers.modeling.instance_wise_stack import InstanceWiseStack
from sublayers.modeling.mixers import convolution
from sublayers.modeling.mixers.convolution import Convolution, find_tokens
from sublayers.modeling.mixers.mixer import Batch
from sublayers.modeling.plan import Packing, Plan
from sublayers.modeling.stack import SublayerStack

pytestmark = pytest.mark.slow

PAIRS = [
    ("df", "dcf"),
    ("lsf", "lcsfd"),
    ("dl", "dcc"),
    ("sfd", "scld"),
    ("l", "csf"),
    *((f"l{'sf'[seed]}d", random_decoder(seed) + "dl"[seed]) for seed in range(2)),
]


def naive_convolution(weights, name, inputs, heads, is_causal):
    """Sum what lies under each position's kernel, one position, head and place of the kernel at a time."""

    def linear(x, part):
        return (weights[f"{name}{part}.weight"] * x).sum(1) + weights[f"{name}{part}.bias"]

    gated = []
    for x in inputs:
        values, *gate = linear(x, "in_proj").split(len(x))
        gated.append(values / (1 + (-gate[0]).exp()) if gate else values)
    weight = weights[f"{name}weight_proj.weight"]
    is_dynamic = weight.shape[1] > 1
    outputs = []
    for i, x in enumerate(gated):
        kernels = ((weight * x).sum(1) if is_dynamic else weight[:, 0]).view(heads, -1).exp()
        width = kernels.shape[1]
        first = i - (width - 1 if is_causal else (width - 1) // 2)
        mixed = []
        for h in range(heads):
            under = [(k, gated[first + k].view(heads, -1)[h]) for k in range(width) if 0 <= first + k < len(gated)]
            mixed.append(sum(kernels[h, k] / kernels[h].sum() * values for k, values in under))
        outputs.append(linear(torch.cat(mixed), "out_proj"))
    return outputs


class NaiveWithConvolutions(NaiveSeq2Seq):
    def attend(self, inputs, seen, name, kind):
        if f"{name}.mixer.in_proj.weight" not in self.weights:
            return super().attend(inputs, seen, name, kind)
        return naive_convolution(self.weights, f"{name}.mixer.", inputs, self.heads, ".decoder." in name)


class TestConvolutionsInTheContract(FamilyContract):
    """Those promises of encoder-decoders to which it makes a difference what mixes positions."""

    config_class = SandwichSeq2SeqConfig
    classes = {AutoModel: SandwichSeq2SeqModel, AutoModelForSeq2SeqLM: SandwichSeq2SeqForConditionalGeneration}
    orders = ("dlf", "fdclcf")
    saved_orders = [("dlf", "fdclcf")]
    exported = ("d", "lcd")
    pairs, all_pairs, without_self_attention = PAIRS, PAIRS, ()
    naive, lacks = NaiveWithConvolutions, ()
    paths, passes = Seq2SeqTrainingContract.paths, Seq2SeqTrainingContract.passes
    naive_loss, trained_pairs = Seq2SeqTrainingContract.naive_loss, ()
    inputs = Seq2SeqContract.inputs
    translator = Seq2SeqContract.translator
    naive_greedy = Seq2SeqGenerationContract.naive_greedy

    def config(self, *orders, **overrides):
        # wider than most sentences here
        return super().config(*orders, **{"kernel_sizes": [3, 4, 9]} | overrides)

    test_equals_a_naive_network = Seq2SeqContract.test_equals_a_naive_network_in_every_pair_of_orders
    test_padding_changes_no_score = Seq2SeqContract.test_padding_changes_no_score
    test_attention_backends_agree = Seq2SeqContract.test_attention_backends_agree
    test_hidden_states_of_padding = Seq2SeqContract.test_hidden_states_of_a_padded_batch_have_a_place_for_its_padding
    test_exports = Seq2SeqContract.test_exports_with_any_batch_and_length
    test_compiles = Seq2SeqContract.test_compiles_in_one_graph
    test_gradient_checkpointing = Seq2SeqContract.test_gradient_checkpointing_changes_no_gradient
    test_cached_generation = Seq2SeqGenerationContract.test_cached_generation_of_padded_sources_equals_a_naive_loop
    test_generates_from_a_start = Seq2SeqGenerationContract.test_generates_from_the_start_of_a_target
    test_continues_from_a_cache = Seq2SeqGenerationContract.test_continues_from_a_cache_at_any_split
    test_beams = Seq2SeqGenerationContract.test_beams_equal_those_with_a_copy_of_the_source_each_and_no_cache
    test_assisted_decoding = Seq2SeqGenerationContract.test_assisted_decoding_equals_plain_decoding
    test_losses = Seq2SeqTrainingContract.test_loss_and_gradients_are_those_of_rows_without_padding
    test_masked_targets = Seq2SeqTrainingContract.test_targets_may_be_masked_and_given_beside_their_labels
    test_no_sublayer_runs_on_padding = Seq2SeqTrainingContract.test_no_sublayer_runs_on_padding

    @pytest.mark.parametrize("decoder", ["dcf", "lcdf", "fcd"])
    def test_decoders_without_attention_to_themselves_have_caches_of_all_kinds(self, decoder):
        model = self.translator("df", decoder)
        config, prompts = model.config, torch.tensor([[2, 9, 5, 11]]).expand(3, -1)
        start = {"decoder_input_ids": prompts}
        expected = self.naive_greedy(model, padded(), prompts)
        for cache in (
            EncoderDecoderCache(DynamicCache(), DynamicCache()),
            EncoderDecoderCache(DynamicCache(config=config), DynamicCache(config=config)),
            EncoderDecoderCache(StaticCache(config, max_cache_len=20), StaticCache(config, max_cache_len=9)),
        ):
            actual = model.generate(**padded(), **start, **GREEDY, cache=cache)
            assert torch.equal(actual[:, 4:], expected)
            assert cache.get_seq_length() == actual.shape[1] - 1
        static = {"cache_implementation": "static"}
        assert torch.equal(model.generate(**padded(), **start, **GREEDY, **static)[:, 4:], expected)
        expected = model.generate(**padded(), **BEAMS, use_cache=False)
        assert torch.equal(model.generate(**padded(), **BEAMS, **static), expected)

    @pytest.mark.full
    def test_steps_with_a_static_cache_compile_in_one_graph(self):
        model = self.translator("df", "dcsl")
        config, compiled = model.config, torch.compile(model, fullgraph=True, backend="aot_eager")
        target = tokens(3, 5)
        expected = model(**padded(), decoder_input_ids=target).logits
        cache = EncoderDecoderCache(StaticCache(config, max_cache_len=8), StaticCache(config, max_cache_len=9))
        encoded = model.get_encoder()(**padded())
        given = {"encoder_outputs": encoded, "attention_mask": padded()["attention_mask"], "cache": cache}
        model(**given, decoder_input_ids=target[:, :2])
        for i in (2, 3, 4):
            logits = compiled(**given, decoder_input_ids=target[:, i : i + 1]).logits
            torch.testing.assert_close(logits[:, 0], expected[:, i])
        torch.compiler.reset()

    def test_counts_what_it_has(self):
        for encoder, decoder in PAIRS:
            config = self.config(encoder, decoder, kernel_sizes=[5])
            model = self.classes[AutoModel](config)
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

    def test_convolutions_of_a_stack_have_the_widths_of_the_list_in_turn(self):
        model = self.translator("s(df)2l2", "dcs(lcf)4", kernel_sizes=[3, 5, 2])
        for stack, widths in ((model.model.encoder, [3, 5, 2, 2]), (model.model.decoder, [3, 5, 2, 2, 2])):
            mixers = [layer.mixer for layer in stack.layers if isinstance(layer.mixer, Convolution)]
            assert [mixer.weight_proj.out_features for mixer in mixers] == [4 * width for width in widths]
        assert self.config_class().kernel_sizes == [3, 7, 15, 31]

    def test_kernels_lose_weights_in_training_only(self):
        for letter in "dl":
            model = self.model(AutoModel, letter, f"{letter}c", attention_dropout=1.0)
            mixer = model.encoder.layers[0].mixer
            states = torch.randn(2, 5, 16)
            assert not torch.allclose(mixer(states)[0], mixer.out_proj.bias.expand(2, 5, -1))
            torch.testing.assert_close(mixer.train()(states)[0], mixer.out_proj.bias.expand(2, 5, -1))

    def test_new_convolutions_start_small(self, tmp_path):
        self.model(AutoModel, "sf", "scf").save_pretrained(tmp_path)
        model = AutoModel.from_pretrained(tmp_path, encoder_sublayer_order="dl", decoder_sublayer_order="lcd")
        kernels = [p for name, p in model.named_parameters() if name.endswith("weight_proj.weight")]
        assert len(kernels) == 4
        assert all(0 < kernel.abs().max() < 0.2 for kernel in kernels)

    @pytest.mark.parametrize(
        ("overrides", "message"),
        [
            ({"kernel_sizes": []}, r"kernel_sizes=\[\] must be positive numbers"),
            ({"kernel_sizes": [3, 0]}, r"kernel_sizes=\[3, 0\] must be positive numbers"),
            ({"kernel_sizes": [3, 1.5]}, "kernel_sizes"),
            ({"num_hidden_layers": 9}, r"num_hidden_layers=9 contradicts the order 'fdclcf', which makes it 2"),
        ],
    )
    def test_refuses_bad_configs(self, overrides, message):
        with pytest.raises(ValueError, match=message):
            self.config(**overrides)


class TestConvolutionsWithoutGates(TestConvolutionsInTheContract):
    is_sibling = True
    """The same promises where nothing is gated, as in what fairseq released."""

    def config(self, *orders, **overrides):
        return super().config(*orders, **{"gated_convolutions": False} | overrides)

    # searches do not see what comes before a convolution
    test_generates_from_a_start = test_continues_from_a_cache = None
    test_beams = test_assisted_decoding = None


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


@pytest.mark.parametrize("config_class", [SandwichLMConfig, MacaronBertConfig])
@pytest.mark.parametrize("letter", "dl")
def test_families_of_one_stack_have_no_convolutions(config_class, letter):
    with pytest.raises(ValueError, match=f"has no sublayers {letter} "):
        config_class(sublayer_order=f"s{letter}f")


def test_convolutions_are_not_split_between_processes():
    config = SandwichSeq2SeqConfig()
    assert config.tensor_parallel_plan(Order("dclf")) == config.tensor_parallel_plan(Order("cf"))
    assert expand("(dl)2") == "dldl"

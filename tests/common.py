"""The contract: what a model of every family must do, whatever the order of its sublayers."""

import copy
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMultipleChoice,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
)
from transformers.initialization import no_init_weights

from sublayers import expand, random_unbalanced
from sublayers.modeling.plan import Plan, select_positions
from sublayers.modeling.stack import SublayerStack

# random weights, and what the original implementations make of them
REFERENCE = Path(__file__).parent / "reference"

PAD, BOS, EOS, VOCAB = 1, 0, 2, 61
WITH_MEMORY = ["sfsf", "ffsfs", "sss", "s2(sf)2f2", *(random_unbalanced(7, seed) for seed in range(3))]
ORDERS = [*WITH_MEMORY, "s2fmfm"]
# an order may lack attention altogether: it is scored and trained, but there is nothing to cache
ALL_FEED_FORWARD = "f4"


def every_backend(test):
    """Run a test with each kind of attention; flex attention takes seconds to compile and need not be."""
    test = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")(test)
    return pytest.mark.parametrize("backend", ["eager", "flex_attention"])(test)


def with_todays_parts(test):
    """Run a test of the contract over a family's second set of configurations, too."""
    test.runs_with_todays_parts = True
    return test


def every_other_local(order: str) -> str:
    """The order with local attention in the place of its second, fourth, ... self-attention."""
    places = itertools.count()
    return "".join("w" if letter == "s" and next(places) % 2 else letter for letter in expand(order))


def randomize(model: PreTrainedModel) -> PreTrainedModel:
    """Give every parameter a random value, so that a term that is left out shows."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            parameter.normal_(std=0.3, generator=generator)
            if "norm" in name and name.endswith("weight"):
                parameter.add_(1)
    return model.eval()


def tokens(rows: int, length: int) -> torch.Tensor:
    return torch.randint(3, VOCAB, (rows, length), generator=torch.Generator().manual_seed(rows * length))


def token_ids(head: type, rows: int, length: int) -> torch.Tensor:
    """Tokens in the shape that a head reads: one of them takes several texts in each row."""
    if head is AutoModelForMultipleChoice:
        return tokens(2 * rows, length).view(rows, 2, length)
    return tokens(rows, length)


def gradients(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same(actual: dict, expected: dict, **tolerance):
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(actual[name], tensor, msg=lambda m, name=name: f"{name}: {m}", **tolerance)


class GradientCatcher(Trainer):
    """A Trainer that keeps the gradients of its first step instead of taking it."""

    def caught(self) -> dict[str, torch.Tensor]:
        found = {}

        def catch(optimizer, *_):
            found.update(gradients(self.model))

        self.create_optimizer().register_step_pre_hook(catch)
        self.train()
        return found


def train_gradients(model, rows: list[dict], folder, data_collator=None, **arguments) -> dict[str, torch.Tensor]:
    """Gradients of the Trainer's first optimizer step over all rows, in their order."""
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=1,
        max_grad_norm=0,
        use_cpu=True,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        train_sampling_strategy="sequential",
        **arguments,
    )
    return GradientCatcher(copy.deepcopy(model), arguments, data_collator, train_dataset=rows).caught()


def assert_accumulates(model, rows: list[dict], folder, expected: dict | None = None, atol=1e-5, rtol=1e-4):
    """The Trainer's gradients of one step are as expected, from all rows at once and from two at a time."""
    whole = train_gradients(model, rows, folder, per_device_train_batch_size=len(rows))
    options = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": len(rows) // 2}
    for found in (whole, train_gradients(model, rows, folder, **options)):
        assert_same(found, whole if expected is None else expected, atol=atol, rtol=rtol)


def silence(body, places):
    """Let the sublayers at some places of a body add nothing."""

    def nothing(states, *sources, read_positions=None, **kwargs):
        return states if read_positions is None else select_positions(states, read_positions)

    for place in places:
        body.layers[place].forward = nothing


class FamilyContract:
    """What holds for the body and for every head, however many stacks they have.

    A family sets `config_class` and its classes by Auto class; its kind sets the rest.
    """

    config_class: type
    classes: dict[type, type]
    # of the stacks, where a test says nothing, and orders that models are saved and loaded with
    orders: tuple[str, ...]
    saved_orders: list[tuple[str, ...]]
    # two rows of tokens for every input that a head needs
    inputs: Callable[[Any, type], dict[str, torch.Tensor]]
    # fields of a second set of configurations, and those with which a test runs
    todays_parts: dict[str, Any] = {}
    parts: dict[str, Any] = {}

    def pytest_generate_tests(self, metafunc):
        if self.todays_parts and getattr(metafunc.function, "runs_with_todays_parts", False):
            metafunc.parametrize("chosen_parts", [{}, self.todays_parts], ids=["papers", "today"], indirect=True)

    @pytest.fixture(autouse=True)
    def chosen_parts(self, request):
        self.parts = getattr(request, "param", {})

    def config(self, *orders: str, **overrides):
        sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "max_position_embeddings": 64}
        ids = {"vocab_size": VOCAB, "pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
        dropouts = dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0)
        fields = self.stacks(*orders or self.orders) | sizes | ids | dropouts | self.parts | overrides
        if self.parts:
            fields |= {name: every_other_local(order) for name, order in fields.items() if name.endswith("_order")}
            has_local = any("w" in order for name, order in fields.items() if name.endswith("_order"))
            fields |= {"attention_window": 3} if has_local else {}
        return self.config_class(**fields)

    def stacks(self, *orders: str) -> dict[str, Any]:
        """What a configuration says about stacks of these orders."""
        return dict(zip(self.config_class.order_fields, orders, strict=True))

    def model(self, head: type = AutoModel, *orders: str, **overrides) -> PreTrainedModel:
        return randomize(self.classes[head](self.config(*orders, **overrides)))

    @with_todays_parts
    def test_saves_and_loads_bit_exactly_through_the_auto_classes(self, tmp_path):
        for auto_class, model_class in self.classes.items():
            for orders in self.saved_orders:
                model = self.model(auto_class, *orders)
                folder = tmp_path / "-".join([model_class.__name__, *orders])
                model.save_pretrained(folder)
                loaded, report = auto_class.from_pretrained(folder, output_loading_info=True)
                assert type(loaded) is model_class
                assert not any(report.values()), report
                assert_same(dict(loaded.named_parameters()), dict(model.named_parameters()), rtol=0, atol=0)
                inputs = self.inputs(auto_class)
                assert torch.equal(loaded(**inputs)[0], model(**inputs)[0])
                assert AutoConfig.from_pretrained(folder).to_dict() == loaded.config.to_dict()
                body, inputs = AutoModel.from_pretrained(folder), self.inputs(AutoModel)
                assert torch.equal(body(**inputs)[0], model.base_model(**inputs)[0])

    def test_a_keyword_that_nobody_reads_is_refused(self):
        for auto_class in self.classes:
            model = self.model(auto_class)
            with pytest.raises(TypeError, match=f"{type(model).__name__}.* unexpected keyword argument 'tomorrow'"):
                model(**self.inputs(auto_class), tomorrow=None)
            for part in model.modules():
                if isinstance(part, PreTrainedModel):
                    with pytest.raises(TypeError, match=r"forward\(\) got an unexpected keyword argument 'tomorrow'"):
                        part(tomorrow=1)

    def test_new_parameters_are_initialised_when_a_head_is_put_on_a_body(self, tmp_path):
        self.model().save_pretrained(tmp_path)
        for auto_class in self.classes.keys() - {AutoModel}:
            model = auto_class.from_pretrained(tmp_path)
            assert all(p.abs().max() < 10 for p in model.parameters())

    def test_slices_of_a_stack_are_lists_of_its_sublayers(self):
        stacks = [module for module in self.model().modules() if isinstance(module, SublayerStack)]
        assert stacks
        for stack in stacks:
            for chosen in (slice(2), slice(1, None), slice(None, None, -2)):
                assert type(stack[chosen]) is nn.ModuleList
                assert [*stack[chosen]] == [*stack][chosen]
            stack[:2].requires_grad_(False)
            frozen = [not any(p.requires_grad for p in layer.parameters()) for layer in stack]
            assert frozen == [i < 2 for i in range(len(stack))]

    def test_buffers_are_filled_before_weights_are(self):
        config = self.config(position_embedding_type="sinusoidal")
        with no_init_weights():
            buffers = dict(self.classes[AutoModel](config).named_buffers())
        assert buffers
        assert_same(buffers, dict(self.classes[AutoModel](config).named_buffers()), rtol=0, atol=0)
        rounded = AutoModel.from_config(config, dtype=torch.bfloat16)
        assert_same(dict(rounded.named_buffers()), {n: x.bfloat16() for n, x in buffers.items()}, rtol=0, atol=0)

    @with_todays_parts
    def test_runs_partly_from_disk_with_a_device_map(self, tmp_path):
        model = self.model()
        model.save_pretrained(tmp_path / "model")
        sides = [(f"{side}.", part) for side, part in model.named_children()] if len(self.orders) > 1 else [("", model)]
        places = {}
        for side, part in sides:
            places |= {f"{side}{name}": "cpu" for name, _ in part.named_children() if name != "layers"}
            places |= {f"{side}layers.{i}": "disk" if i % 2 else "cpu" for i in range(len(part.layers))}
        loaded = AutoModel.from_pretrained(tmp_path / "model", device_map=places, offload_folder=tmp_path / "offload")
        inputs = self.inputs(AutoModel)
        torch.testing.assert_close(loaded(**inputs)[0], model(**inputs)[0])


class ModelContract(FamilyContract):
    """What holds for models of one stack."""

    orders = ("sfsfsff",)
    saved_orders = [("sfsfsff",), ("sfmfmf",), (ALL_FEED_FORWARD,)]
    # in which models run; those without attention come beside them
    attentive = ORDERS

    def inputs(self, head):
        return {"input_ids": token_ids(head, 2, 9)}

    @with_todays_parts
    @every_backend
    def test_attention_backends_agree(self, backend):
        mask = torch.ones(3, 9, dtype=torch.long)
        mask[1, :4] = mask[2, -3:] = 0
        places = torch.tensor([[2, 8], [4, 7], [0, 5]])

        def run(model):
            whole = model(tokens(3, 9), attention_mask=mask).last_hidden_state[mask.bool()]
            plan = Plan.of(tokens(3, 9), mask, places)
            states = model(tokens(3, 9), attention_mask=mask, plan=plan)[0]
            # with m, a backend without single queries leaves the choice of what is read to the head
            assert "m" in model.config.sublayer_order or states.shape[1] == places.shape[1]
            return whole, plan.select(states)

        for order in self.attentive:
            model = self.model(sublayer_order=order)
            with torch.no_grad(), torch.compiler.set_stance("force_eager"):
                expected = run(model)
                model.set_attn_implementation(backend)
                torch.testing.assert_close(run(model), expected, atol=1e-5, rtol=1e-5)

    @with_todays_parts
    def test_returns_a_hidden_state_for_every_sublayer_and_weights_for_every_attention(self):
        for order in (*self.attentive, ALL_FEED_FORWARD):
            model = self.model(sublayer_order=order, attn_implementation="eager")
            out = model(tokens(2, 9), output_hidden_states=True, output_attentions=True)
            assert len(out.hidden_states) == model.config.num_sublayers + 1
            assert torch.equal(out.hidden_states[-1], out.last_hidden_state)
            assert len(out.attentions) == model.config.num_hidden_layers
            for weights in out.attentions:
                torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 9))

    @with_todays_parts
    def test_neither_reading_some_positions_nor_checkpoints_change_a_gradient(self):
        ids, mask, places = tokens(2, 9), torch.ones(2, 9, dtype=torch.long), torch.tensor([[8], [5]])
        mask[1, 6:] = 0
        for order in (*self.attentive, ALL_FEED_FORWARD):
            model = self.model(sublayer_order=order).train()
            found, runs = [], []
            model.layers[-1].mixer.register_forward_pre_hook(lambda *_, runs=runs: runs.append(1))
            for checkpoints in (False, True):
                if checkpoints:
                    model.gradient_checkpointing_enable()
                for plan in (None, Plan.of(ids, mask, places)):
                    states = model(ids, attention_mask=mask, plan=plan).last_hidden_state
                    states = states if plan else torch.take_along_dim(states, places[..., None], 1)
                    states.square().sum().backward()
                    found.append(gradients(model))
                    model.zero_grad()
            # the backward pass ran the sublayer again
            assert len(runs) == 1 + 1 + 2 + 2
            for others in found[1:]:
                assert_same(others, found[0], atol=1e-4, rtol=1e-4)

    @pytest.mark.slow
    def test_compiles_in_one_graph(self):
        for head, training in itertools.product(self.classes, (False, True)):
            model = self.model(head).train(training)
            batch = {"input_ids": tokens(2, 9), "attention_mask": torch.ones(2, 9, dtype=torch.long)}
            if training and head is AutoModelForCausalLM:
                batch["labels"] = tokens(2, 9).where(tokens(2, 9) > 9, -100)
            expected = model(**batch)[0]
            expected.sum().backward()
            wanted = gradients(model)
            model.zero_grad()
            actual = torch.compile(model, fullgraph=True, backend="aot_eager")(**batch)[0]
            torch.testing.assert_close(actual, expected)
            actual.sum().backward()
            assert_same(gradients(model), wanted, atol=1e-5, rtol=1e-4)
            torch.compiler.reset()

    @pytest.mark.slow
    def test_exports_with_any_batch_and_length(self):
        for head in self.classes:
            model = self.model(head, "fsf", use_cache=False)
            ids = token_ids(head, 2, 9)
            any_shape = {0: torch.export.Dim("batch"), ids.ndim - 1: torch.export.Dim("length", max=64)}
            program = torch.export.export(
                model, (), {"input_ids": ids}, dynamic_shapes={"input_ids": any_shape}, strict=False
            )
            ids = token_ids(head, 3, 20)
            torch.testing.assert_close(program.module()(input_ids=ids)[0], model(ids)[0])

    @pytest.mark.parametrize(
        ("overrides", "message"),
        [
            ({"sublayer_order": "sfqf"}, r"'q' is not a sublayer"),
            ({"num_hidden_layers": 9}, r"num_hidden_layers=9 contradicts the order '\(sf\)3f'"),
            ({"hiden_size": 16}, "did you mean 'hidden_size'"),
            ({"tomorrow": 16}, "no field 'tomorrow'; nobody would read it"),
        ],
    )
    def test_refuses_bad_configs(self, overrides, message):
        with pytest.raises(ValueError, match=message):
            self.config(**overrides)

    def test_says_in_one_sentence_what_is_wrong_with_an_input(self):
        model = self.model()
        with pytest.raises(ValueError, match=f"input_ids must lie between 0 and {VOCAB - 1}, got 5 to {VOCAB}"):
            model(torch.tensor([[5, VOCAB]]))
        with pytest.raises(ValueError, match="65 tokens does not fit into max_position_embeddings=64"):
            model(tokens(1, 65))
        with pytest.raises(ValueError, match="position_ids must lie between 0 and 63"):
            model(tokens(1, 3), position_ids=torch.tensor([[62, 63, 64]]))
        for head in self.classes:
            with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
                self.model(head)()

"""A mixture is the plain model where it is decided, and a search finds what the data need."""

from typing import ClassVar

import numpy as np
import pytest
import torch
from transformers import TrainingArguments, default_data_collator, set_seed

from sublayers import (
    MacaronBertConfig,
    MacaronBertForMaskedLM,
    PARBertConfig,
    PARBertForMaskedLM,
    PARBertForSequenceClassification,
    PARTransformerXLConfig,
    PARTransformerXLForCausalLM,
    SandwichCharLMConfig,
    SandwichCharLMForCausalLM,
    SandwichLMConfig,
    SandwichLMForCausalLM,
    SandwichSeq2SeqConfig,
    SandwichSeq2SeqForConditionalGeneration,
    expand,
)
from sublayers.training.data.segments import training_segments
from sublayers.training.lab.search.price import Price, price
from sublayers.training.lab.search.settings import Settings
from sublayers.training.lab.search.supernet import Architecture, SupernetStreamTrainer, SupernetTrainer, mix

SIZES = {"vocab_size": 30, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "dropout": 0.0}
SIZES |= {"attention_dropout": 0.0, "activation_dropout": 0.0, "max_position_embeddings": 12}
IDS = torch.tensor([[5, 6, 7, 8, 9, 10], [11, 12, 13, 14, 4, 4]])
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
LABELS = IDS.masked_fill(torch.tensor([[1, 0, 0, 1, 0, 0], [1, 0, 1, 0, 1, 1]]).bool(), -100)
INPUTS = {"input_ids": IDS, "attention_mask": MASK, "labels": LABELS}

LM = SandwichLMConfig(**SIZES, final_norm=True)
BERT = PARBertConfig(**SIZES, pad_token_id=4)
MACARON = MacaronBertConfig(**SIZES, pad_token_id=4, pre_attention_act=None)
# shorter than the text, so that the second segment reads what the first one left
XL = PARTransformerXLConfig(**SIZES, memory_length=2, adaptive_cutoffs=[20])
CHARACTERS = SandwichCharLMConfig(**SIZES, attention_span=4, span_ramp_size=2)
SEQ2SEQ = SandwichSeq2SeqForConditionalGeneration, SandwichSeq2SeqConfig(**SIZES)
# model, configuration, name of the order, candidates
CASES = {
    "pre-norm language model": (SandwichLMForCausalLM, LM, "sublayer_order", "sf"),
    "post-norm BERT, which reads some positions": (PARBertForMaskedLM, BERT, "sublayer_order", "sf"),
    "half steps": (MacaronBertForMaskedLM, MACARON, "sublayer_order", "sf"),
    "relative positions and memory": (PARTransformerXLForCausalLM, XL, "sublayer_order", "sf"),
    "adaptive spans and memory": (SandwichCharLMForCausalLM, CHARACTERS, "sublayer_order", "sf"),
    "encoder": (*SEQ2SEQ, "encoder_sublayer_order", "sf"),
    "decoder": (*SEQ2SEQ, "decoder_sublayer_order", "scf"),
}


def loss_of(model):
    if not hasattr(model, "empty_memory"):
        return model(**INPUTS).loss
    memory, losses = model.empty_memory(len(IDS)), []
    for segment in IDS.split(3, 1):
        output = model(input_ids=segment, labels=segment, memory=memory)
        memory = output.memory
        losses.append(output.loss)
    return sum(losses)


def gradients(model):
    loss = loss_of(model)
    loss.backward()
    return loss, {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("chosen", ["sf-sff", "fff-fs", "--s---"])
@pytest.mark.parametrize("case", CASES)
def test_a_decided_mixture_is_the_plain_model_and_has_its_gradients(case, chosen):
    model_class, config, field, letters = CASES[case]
    chosen = chosen.replace("s-", "c-") if "c" in letters else chosen
    setattr(config, field, f"({letters})6")
    supernet = model_class(config).eval()
    for weight in supernet.parameters():
        # norms and biases begin alike
        weight.data += 0.1 * torch.randn_like(weight)
    setattr(config, field, chosen.replace("-", ""))
    plain = model_class(config).eval()
    places = [len(letters) * i + letters.index(letter) for i, letter in enumerate(chosen) if letter != "-"]
    stack = f"model.{field.partition('_')[0]}.layers." if config.is_encoder_decoder else "model.layers."

    def of_supernet(name):
        number, _, rest = name.removeprefix(stack).partition(".")
        return f"{stack}{places[int(number)]}.{rest}" if name.startswith(stack) else name

    weights = supernet.state_dict()
    plain.load_state_dict({name: weights[of_supernet(name)] for name in plain.state_dict()})
    mixture = mix(supernet, field, letters)
    mixture.weights = torch.tensor([[float(letter == each) for each in f"{letters}-"] for letter in chosen])
    (loss, found), (plain_loss, wanted) = gradients(supernet), gradients(plain)
    torch.testing.assert_close(loss, plain_loss, rtol=1e-6, atol=1e-6)
    for name, gradient in wanted.items():
        of_name = found.pop(of_supernet(name))
        torch.testing.assert_close(of_name, gradient, rtol=1e-5, atol=1e-6, msg=f"the gradient of {name} differs")
    # what was not chosen gets no gradient
    assert found
    assert not any(gradient.any() for gradient in found.values())


def test_a_mixture_is_the_weighted_sum_of_its_sublayers():
    model = SandwichLMForCausalLM(SandwichLMConfig(**SIZES, sublayer_order="(sf)3")).eval()
    mixture = mix(model, "sublayer_order", "sf")
    weights = mixture.weights = torch.randn(3, 3).softmax(-1)
    body = model.model
    states = body.embed_tokens(IDS) * body.embed_scale + body.embed_positions(torch.arange(6)[None])
    mask = torch.full((6, 6), -torch.inf).triu(1)[None, None]
    for layer in range(3):
        runs = [mixture[2 * layer + i](states, attention_mask=mask) for i in range(2)]
        states = weights[layer, 0] * runs[0] + weights[layer, 1] * runs[1] + weights[layer, 2] * states
    torch.testing.assert_close(body(input_ids=IDS).last_hidden_state, states)


def settings(**changes):
    return Settings("sublayer_order", "sf", **changes)


@pytest.mark.parametrize("temperature", [5.0, 0.5])
def test_weights_are_a_gumbel_softmax_of_the_logits(temperature):
    architecture = Architecture(4, settings(), torch.device("cpu"))
    with torch.no_grad():
        architecture.logits.copy_(torch.randn(4, 3))
    torch.manual_seed(3)
    drawn = architecture.draw(temperature)
    torch.manual_seed(3)
    # torch draws -log of Gumbel's exponential variable
    noise = -torch.empty(4, 3).exponential_().log()
    torch.testing.assert_close(drawn, ((architecture.logits + noise) / temperature).softmax(-1))


def test_an_order_above_the_budget_changes_where_it_costs_the_least_probability():
    table = Price({"s": 1.0, "f": 2.0}, {"s": 1.0, "f": 2.0})
    architecture = Architecture(3, settings(price=table, budget=4.0), torch.device("cpu"))
    with torch.no_grad():
        architecture.logits.copy_(torch.tensor([[0.5, 0.4, 0.1], [0.1, 0.6, 0.3], [0.1, 0.5, 0.4]]).log())
    # sff costs 5: to leave out the last f costs log(5/4) for 2, to make s of the second costs log(6) for 1
    assert architecture.order() == "sf"
    architecture.settings.budget = 5.0
    assert architecture.order() == "sf2"
    architecture.settings.budget = None
    assert architecture.order() == "sf2"
    with torch.no_grad():
        architecture.logits.copy_(torch.tensor([[0.0, 0.2, 1.0], [0.1, 0.0, 1.0], [0.0, 0.0, 1.0]]))
    assert architecture.order() == "f"
    architecture.settings.budget = 1.0
    assert architecture.order() == "s"


def test_the_price_weighs_more_as_long_as_the_mean_is_above_the_budget():
    table = Price({"s": 1.0, "f": 1.0}, {"s": 1.0, "f": 1.0})
    how = settings(price=table, budget=2.0, architecture_learning_rate=0.1)
    architecture = Architecture(4, how, torch.device("cpu"))
    assert architecture.excess().item() == pytest.approx(4 * 2 / 3 / 2 - 1)
    weights = []
    for _ in range(200):
        # nothing but the price counts
        architecture.step(architecture.draw(1.0).sum() * 0)
        weights.append(architecture.price_weight)
    assert 0 < weights[0] < weights[1] < weights[2]
    # nothing draws the cost up again, so the weight has gone
    assert architecture.excess().item() < 0
    assert weights[-1] == 0


def test_refuses_settings_that_search_nothing():
    for name, value in {"warmup_share": 1.0, "held_out_share": 0.0, "patience": -1.0}.items():
        with pytest.raises(ValueError, match=f"{name}={value} is no share; give a number between 0 and 1"):
            settings(**{name: value})
    with pytest.raises(ValueError, match=r"architecture_update_share=0\.0 is no share of the steps; give more than 0"):
        settings(architecture_update_share=0.0)
    for name, value in {"temperatures": (5.0, 0.0), "architecture_learning_rate": 0.0}.items():
        with pytest.raises(ValueError, match=r"a learning rate or temperature of 0\.0 would learn nothing"):
            settings(**{name: value})


PLACES = 8
QUIET = {"report_to": [], "disable_tqdm": True, "save_strategy": "no", "logging_strategy": "no", "use_cpu": True}


def early(number, generator):
    """The label is a table's entry of three tokens, none of them the first: it has to fetch them, and then compute."""
    table = torch.randint(0, 4, (4, 4, 4), generator=torch.Generator().manual_seed(7))
    values = torch.randint(0, 4, (number, PLACES), generator=generator)
    tokens = torch.cat([torch.full((number, 1), 4), values], 1)
    return tokens, torch.zeros_like(tokens), table[values[:, 0], values[:, 1], values[:, 2]]


def late(number, generator):
    """The label is the token at a place that follows from the first token and its segment: compute, and then fetch."""
    table = torch.randint(0, PLACES, (PLACES, PLACES), generator=torch.Generator().manual_seed(7))
    values = torch.randint(0, 4, (number, PLACES), generator=generator)
    token, segment = torch.randint(0, PLACES, (2, number), generator=generator)
    tokens = torch.cat([4 + token[:, None], values], 1)
    segments = torch.zeros_like(tokens)
    segments[:, 0] = segment
    return tokens, segments, values[torch.arange(number), table[token, segment]]


def search(task, seed, folder, trainer_class=SupernetTrainer, steps=400, **changes):
    tokens, segments, labels = task(8000, torch.Generator().manual_seed(seed))
    set_seed(seed)
    sizes = {"vocab_size": 4 + PLACES, "type_vocab_size": PLACES, "max_position_embeddings": 1 + PLACES}
    sizes |= {"hidden_size": 32, "intermediate_size": 64, "num_labels": 4, "sublayer_order": "(sf)4"}
    parts = {"norm_position": "pre", "final_norm": True, "classifier_dropout": 0.0, "initializer_range": 0.2}
    config = PARBertConfig(**SIZES | sizes | parts)
    counted = price(config, "sf", "parameters", 4, "all")
    # room for two of the four layers
    how = {"warmup_share": 0.3, "architecture_update_share": 1.0, "architecture_learning_rate": 0.1} | changes
    how["price"] = counted
    how["budget"] = 1.1 * counted.cost("sf")
    batches = {"per_device_train_batch_size": 64, "per_device_eval_batch_size": 64, "dataloader_pin_memory": False}
    rates = {"learning_rate": 5e-3, "lr_scheduler_type": "constant", "max_steps": steps, "seed": seed}
    args = TrainingArguments(output_dir=str(folder), **QUIET, **batches, **rates)
    columns = {"input_ids": tokens, "token_type_ids": segments, "labels": labels}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    model = PARBertForSequenceClassification(config)
    trainer = trainer_class(model=model, args=args, train_dataset=rows, settings=settings(**how))
    trainer.train()
    return trainer


class Watched(SupernetTrainer):
    """Notes the rows that train the model and those that train the architecture, and whether the other one moves."""

    rows: ClassVar[dict[str, set]] = {}
    moved: ClassVar[dict[str, list[bool]]] = {}

    def compute_loss(self, model, inputs, *args, **kwargs):
        whose = "architecture" if self.mixture.weights.requires_grad else "model"
        self.rows.setdefault(whose, set()).update(tuple(row.tolist()) for row in inputs["input_ids"])
        return super().compute_loss(model, inputs, *args, **kwargs)

    def take_turn(self, step, max_steps):
        weights = [weight.clone() for weight in self.model.parameters()]
        logits = self.architecture.logits.clone()
        ended = super().take_turn(step, max_steps)
        changed = any(not a.equal(b) for a, b in zip(weights, self.model.parameters(), strict=True))
        self.moved.setdefault("model in the architecture's turn", []).append(changed)
        self.moved.setdefault("architecture", []).append(not logits.equal(self.architecture.logits))
        return ended


def distinct(number, generator):
    """Every row is another one."""
    tokens = torch.cartesian_prod(*[torch.arange(10)] * 4)[:number]
    return tokens, torch.zeros_like(tokens), tokens.sum(1) % 4


def test_model_and_architecture_are_trained_in_turns_on_data_of_their_own(tmp_path):
    schedule = {"warmup_share": 0.25, "architecture_update_share": 0.4, "patience": 0.99}
    trainer = search(distinct, 0, tmp_path, Watched, steps=80, **schedule)
    assert not Watched.rows["model"] & Watched.rows["architecture"]
    # the architecture has batches of 64, as the model has
    assert len(Watched.rows["architecture"]) == 24 * 64
    assert not any(Watched.moved["model in the architecture's turn"])
    assert Watched.moved["architecture"] == [False] * 20 + [False, False, True, False, True] * 12
    steps = [point["step"] for point in trainer.curve]
    assert steps == [*range(1, trainer.state.global_step + 1)]
    temperatures = [point["temperature"] for point in trainer.curve]
    assert temperatures[:20] == [5.0] * 20
    assert temperatures[20:] == sorted(temperatures[20:], reverse=True)
    assert temperatures[49] == pytest.approx(5.0 * (0.1 / 5.0) ** 0.5)
    assert trainer.curve[0]["probabilities"] == [[0.3333] * 3] * 4


def test_a_memory_runs_along_the_text_of_the_weights_and_another_one_along_the_held_out_text(tmp_path):
    model = PARTransformerXLForCausalLM(PARTransformerXLConfig(**SIZES, memory_length=7, sublayer_order="(sf)3"))
    # rows of 7 and 4 segments, the last ones short
    tokens = np.arange(115).astype(np.int32) % 30
    size = {"per_device_train_batch_size": 2, "max_steps": 20}
    trainer = SupernetStreamTrainer(
        model=model,
        args=TrainingArguments(output_dir=str(tmp_path), **QUIET, **size),
        train_dataset=training_segments(tokens, 6, 2),
        data_collator=default_data_collator,
        settings=settings(held_out_share=0.35, architecture_update_share=0.5, patience=0.99),
    )
    calls = {"model": [], "architecture": []}

    def watch(module, args, kwargs, output):
        whose = "architecture" if trainer.mixture.weights.requires_grad else "model"
        calls[whose].append((kwargs["input_ids"], kwargs["memory"], output.memory))

    model.register_forward_hook(watch, with_kwargs=True)
    trainer.train()
    assert {whose: len(given) for whose, given in calls.items()} == {"model": 20, "architecture": 8}
    for whose, (start, end), segments in (("model", (0, 75), 7), ("architecture", (75, 115), 4)):
        part = torch.from_numpy(tokens[start:end].astype(np.int64))
        rows = (len(part) - 1) // 2
        before = None
        for number, (ids, memory, kept) in enumerate(calls[whose]):
            first = 6 * (number % segments)
            wanted = [part[row * rows :][first : min(first + 6, rows)] for row in range(2)]
            assert ids.equal(torch.stack(wanted)), (whose, number)
            # of the input of each of 3 layers, empty at the beginning of an epoch
            assert len(memory) == 3
            if first == 0:
                assert all(states.shape[1] == 0 for states in memory)
            else:
                assert all(a.equal(b) for a, b in zip(memory, before, strict=True))
            before = kept


def test_a_search_whose_order_does_not_change_any_more_ends(tmp_path):
    assert search(early, 0, tmp_path, steps=40, patience=0.99).state.global_step == 40
    # so small a step cannot turn the order that the first turn has given
    assert search(early, 0, tmp_path, steps=40, architecture_learning_rate=1e-4, patience=0.25).state.global_step < 40


@pytest.mark.slow
@pytest.mark.parametrize(("task", "order"), [(early, "s"), (late, "fs")])
@pytest.mark.full
def test_finds_where_the_data_need_attention(task, order, tmp_path):
    found = [search(task, seed, tmp_path).architecture.order() for seed in range(5)]
    assert sum(expand(one).startswith(order) for one in found) >= 4, found

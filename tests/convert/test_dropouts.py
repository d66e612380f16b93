"""Every dropout of every source stands after the conversion where it stood before, and is as large."""

import pytest
import torch
import transformers
from common import tokens
from common_convert import convert, in_turn, make

from sublayers import AUTO_CLASSES, PARBertConfig
from sublayers.convert.bert import ENCODERS
from sublayers.convert.sources import BODIES, CLASSES, FAMILIES, from_transformers
from sublayers.convert.transformer_xl import MODEL_TYPE


def classes(model_type):
    """The sources of this type, one for each head that is converted."""
    if model_type in CLASSES:
        return [*dict.fromkeys(CLASSES[model_type].values())]
    start = ENCODERS[model_type].base.__name__.removesuffix("PreTrainedModel")
    names = [start + ours.__name__.removeprefix("PARBert") for ours in AUTO_CLASSES[PARBertConfig].values()]
    return [getattr(transformers, name) for name in names if hasattr(transformers, name) and name not in BODIES]


def dropouts(model_class):
    """The dropouts that a source's configuration names, with their defaults."""
    defaults = model_class.config_class().to_dict()
    return {name: value for name, value in defaults.items() if "drop" in name}


TYPES = [model_type for model_type in FAMILIES if model_type != MODEL_TYPE]
# what the command tells, since nothing here has it
TOLD = {"encoder_layerdrop", "decoder_layerdrop"}
# options of heads that are not converted
ELSEWHERE = {"gpt2": {"summary_first_dropout"}, "bart": {"classifier_dropout"}, "mbart": {"classifier_dropout"}}
# which transformers reads nowhere
ELSEWHERE |= {"nemotron_h": {"hidden_dropout"}}
CASES = [
    pytest.param(model_class, option, id=f"{model_class.__name__}-{option}")
    for model_type in TYPES
    for model_class in classes(model_type)
    for option in dropouts(model_class)
    if option not in TOLD
]
CASES = in_turn(CASES, lambda case: case.values[0].config_class)


def build(model_class, option, share=0.5):
    """A source in training mode with this dropout alone, and those that follow it unless they are given."""
    others = {name: 0.0 for name, default in dropouts(model_class).items() if default is not None}
    return make(model_class.__name__, **others | {option: share}).train()


def batch(source):
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[1, 6:] = 0
    ids = tokens(2, 9).masked_fill(mask == 0, source.config.pad_token_id)
    if type(source).__name__.endswith("MultipleChoice"):
        return {"input_ids": ids[None], "attention_mask": mask[None]}
    targets = {"decoder_input_ids": ids} if source.config.is_encoder_decoder else {}
    return {"input_ids": ids, "attention_mask": mask, **targets}


def run(model, inputs):
    """All outputs, without those of padding."""
    mask = inputs["attention_mask"].bool()
    outputs = {name: value for name, value in model(**inputs).items() if isinstance(value, torch.Tensor)}
    return {name: value[mask] if value.shape[:2] == mask.shape else value for name, value in outputs.items()}


def assert_same(source, model):
    inputs = batch(source)
    wanted, found = run(source, inputs), run(model.train(), inputs)
    for name, expected in wanted.items():
        torch.testing.assert_close(found[name], expected, atol=1e-4, rtol=1e-4)


@pytest.fixture
def weakened(monkeypatch):
    """Let no dropout drop at random: the first channels or keys become weaker by its share, the last ones stronger."""

    def weaken(states, p=0.5, training=True, inplace=False):
        return states * (1 + p * training * torch.linspace(-1, 1, states.shape[-1]))

    monkeypatch.setattr(torch.nn.functional, "dropout", weaken)


@pytest.mark.representatives(120)
@pytest.mark.parametrize(("model_class", "option"), CASES)
@torch.no_grad()
def test_dropouts_stand_where_the_source_has_them(model_class, option, weakened):
    source = build(model_class, option)
    model, _ = from_transformers(source, {})
    for network in (source, model):
        # kernels drop on their own
        network.set_attn_implementation("eager")
    assert_same(source, model)


@pytest.mark.representatives(45)
@pytest.mark.parametrize(("model_class", "option"), [case for case in CASES if "att" in case.id.partition("-")[2]])
@torch.no_grad()
def test_kernels_drop_the_weights_of_attention(model_class, option):
    source = build(model_class, option, 1.0)
    assert_same(source, from_transformers(source, {})[0])


@pytest.mark.parametrize("model_type", TYPES)
@torch.no_grad()
def test_every_option_drops_something_with_some_head(model_type, weakened):
    cases = [case.values for case in CASES if case.values[0].config_class.model_type == model_type]
    seen = set()
    for model_class, option in cases:
        source = build(model_class, option)
        source.set_attn_implementation("eager")
        inputs = batch(source)
        dropped, whole = run(source, inputs), run(source.eval(), inputs)
        if not all(torch.equal(dropped[name], whole[name]) for name in whole):
            seen.add(option)
    assert seen == {option for _, option in cases} - ELSEWHERE.get(model_type, set())


@pytest.mark.parametrize("name", ["BartModel", "MBartModel", "MarianModel", "PegasusModel"])
def test_layers_that_are_dropped_as_a_whole_are_told(name, tmp_path, capsys):
    model_class = getattr(transformers, name)
    build(model_class, "decoder_layerdrop", 0.25).save_pretrained(tmp_path / "source")
    report = convert(tmp_path)
    assert "\nnot followed in training: decoder_layerdrop=0.25\n" in capsys.readouterr().out
    assert report["not_followed"] == {"decoder_layerdrop": 0.25}

"""Models in memory become ours, with the same answers in the same memory, and go back as they were."""

import copy

import pytest
import torch
from common_convert import GROUPED, LONG, SOURCES, in_turn, make
from torch import nn
from transformers import BertForSequenceClassification, BertModel, pipeline

from sublayers import PARBertModel, SandwichLMForCausalLM, SandwichLMModel, optimize, restore
from sublayers.convert.bert import ENCODERS
from sublayers.convert.verify import draw
from sublayers.modeling.modeling_sublayers import SublayersPreTrainedModel
from sublayers.training.data.tokenizers import train_tokenizer

BODIES = {
    f"{prefix}Model": (f"{prefix}Model", GROUPED | options)
    for prefix, options in {"Llama": {}, "Mistral": {"sliding_window": 5}, "Qwen3": {"head_dim": 12}}.items()
}
HELD = SOURCES | BODIES | {"GPT2Model": ("GPT2Model", {}), "ModernBertModel": ("ModernBertModel", LONG)}


def run(model, inputs):
    """The model's tensors for a batch, those of the tokens zero at padding."""
    outputs = model(**inputs)
    mask = inputs.get("decoder_attention_mask", inputs["attention_mask"]).bool()
    return {
        name: value.masked_fill(~mask.view(*mask.shape, *[1] * (value.ndim - mask.ndim)), 0)
        if value.shape[: mask.ndim] == mask.shape
        else value
        for name, value in outputs.items()
        if isinstance(value, torch.Tensor)
    }


@pytest.fixture(params=in_turn(HELD, lambda name: name.rsplit(" ", 1)[0]))
def source(request):
    name, options = HELD[request.param]
    return make(name, **options).eval()


@pytest.mark.representatives(90)
def test_the_same_answers_in_the_same_memory_and_back(source):
    before = copy.deepcopy(source.state_dict())
    model = optimize(source, verify=True)
    assert isinstance(model, SublayersPreTrainedModel)
    assert not model.training
    # right padding alone is the same for all
    inputs = {name: value[:2] for name, value in draw(model, source).items()}
    expected = run(source, inputs)
    found = run(model, inputs)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)
    places = {parameter.untyped_storage().data_ptr() for parameter in source.parameters()}
    copied = [name for name, value in model.named_parameters() if value.untyped_storage().data_ptr() not in places]
    # GPT-2's matrices lie the other way round; what has no weights of the source is new
    if source.config.model_type != "gpt2":
        # and transformers copies the bias of a head that it ties
        assert all(not model.origin.pieces[name].names or name == "lm_head.bias" for name in copied), copied
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    again = restore(model)
    assert type(again) is type(source)
    taken = {piece.tensor.untyped_storage().data_ptr() for piece in model.origin.pieces.values()}
    for name, value in again.state_dict().items():
        doubled = value.untyped_storage().data_ptr() in taken
        torch.testing.assert_close(value, 2 * before[name] if doubled else before[name], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("GraniteMoeHybridForCausalLM", {"tie_word_embeddings": True, "attention_bias": True}),
        ("GraniteMoeHybridForCausalLM", {"num_local_experts": 0, "position_embedding_type": "rope"}),
        ("GraniteMoeHybridModel", {}),
        ("Qwen3NextForCausalLM", {"attention_bias": True}),
        ("Qwen3NextForSequenceClassification", {"mlp_only_layers": [1]}),
    ],
)
def test_weights_that_lie_otherwise_here_find_their_way_back(name, options):
    source = make(name, **options).eval()
    before = copy.deepcopy(source.state_dict())
    model = optimize(source, verify=True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    for each, value in restore(model).state_dict().items():
        torch.testing.assert_close(value, 2 * before[each])


def test_what_was_given_stays_as_it_is():
    source = make("BertForSequenceClassification", num_labels=3).train()
    source.bert.embeddings.requires_grad_(False)
    before = copy.deepcopy(source.state_dict())
    model = optimize(source, verify=True)
    assert type(source) is BertForSequenceClassification
    assert source.training
    assert model.training
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen == {name for name, _ in model.named_parameters() if name.startswith("model.embed")}
    assert all(torch.equal(value, before[name]) for name, value in source.state_dict().items())
    assert optimize(model) is model


def test_training_moves_the_weights_of_both_alike():
    source = make("BertForSequenceClassification", num_labels=3).eval()
    inputs = {"input_ids": torch.tensor([[5, 6, 7], [8, 9, 0]]), "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]])}
    inputs["labels"] = torch.tensor([0, 2])
    twin = copy.deepcopy(source)
    model = optimize(source)
    for each in (model, twin):
        each(**inputs).loss.backward()
        torch.optim.SGD(each.parameters(), 0.1).step()
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(source.state_dict()[name], value)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_type_and_attention_stay(dtype):
    source = make("BertModel").eval().to(dtype)
    source.set_attn_implementation("eager")
    model = optimize(source)
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    assert model.config._attn_implementation == "eager"
    assert restore(model) is source


def test_a_body_without_a_pooler_has_none():
    source = BertModel(make("BertModel").config, add_pooling_layer=False).eval()
    model = optimize(source, verify=True)
    assert isinstance(model, PARBertModel)
    ids = torch.tensor([[5, 6, 7]])
    assert model(ids).pooler_output is None
    assert isinstance(optimize(make("LlamaModel", **GROUPED)), SandwichLMModel)


def test_a_saved_one_has_no_way_back(tmp_path):
    optimize(make("BertModel")).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="was not made by optimize"):
        restore(PARBertModel.from_pretrained(tmp_path))


def test_what_a_file_held_before_it_was_loaded_is_no_reason_to_refuse():
    source = make("LlamaForCausalLM", **GROUPED).eval()
    source.config.quantization_config = {"quant_method": "gguf"}
    assert isinstance(optimize(source, verify=True), SandwichLMForCausalLM)


class Own(BertModel):
    """A class that somebody else wrote."""


class Quantized(nn.Parameter):
    """Weights of another kind."""


REFUSED = {
    "hooks": (lambda model: model.pooler.register_forward_hook(print) and None, "has hooks, which would be lost"),
    "other weights": (
        lambda model: setattr(model.pooler.dense, "weight", Quantized(model.pooler.dense.weight.data)),
        "pooler.dense.weight of BertModel is quantized, sharded or without values",
    ),
    "a forward": (lambda model: setattr(model.pooler, "forward", print), "compiled or dispatched"),
    "compiled": (lambda model: model.compile(), "compiled or dispatched"),
    "wrapped": (torch.compile, "OptimizedModule cannot be optimized; give a model of transformers"),
    "parallel": (nn.DataParallel, "DataParallel cannot be optimized"),
    "no values": (lambda model: model.to("meta"), "without values; optimize the model before that"),
    "parts of other shapes": (
        lambda model: setattr(model.encoder.layer[0].output, "dense", nn.Linear(3, 5)),
        "has parts of another type or shape|does not fit into",
    ),
    "a class": (lambda model: Own(model.config), "Own is a class of its own"),
    "no model within": (lambda model: nn.Sequential(nn.Linear(2, 2)), "Sequential has no model of transformers in it"),
    "no model": (lambda model: model.config, "BertConfig cannot be optimized"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_would_be_lost_is_refused(kind):
    change, said = REFUSED[kind]
    model = make("BertModel")
    # where nothing comes out, the model itself was changed
    held = model if (changed := change(model)) is None else changed
    with pytest.raises(ValueError, match=said):
        optimize(held)


def test_models_that_none_here_is_like_are_refused():
    with pytest.raises(ValueError, match="BartModel is the body of an encoder-decoder"):
        optimize(make("BartModel"))
    with pytest.raises(ValueError, match="T5ForConditionalGeneration holds 't5'; of transformers' models,"):
        optimize(make("T5ForConditionalGeneration"))


def test_what_learned_without_a_place_is_not_dropped():
    model = optimize(make("ModernBertForSequenceClassification", **LONG))
    nn.init.ones_(model.model.pooler.dense.bias)
    with pytest.raises(ValueError, match=r"pooler.dense.bias has learned, and ModernBertFor"):
        restore(model)
    model = optimize(make("LlamaForCausalLM", **GROUPED))
    model.resize_token_embeddings(80)
    with pytest.raises(ValueError, match="have other names or shapes than optimize gave them"):
        restore(model)


def test_a_pipeline_keeps_all_but_its_model():
    tokenizer = train_tokenizer(["the cat sat on the mat", "a dog"], "wordpiece", 60)
    source = make("BertForSequenceClassification")
    classify = pipeline("text-classification", model=source, tokenizer=tokenizer, device="cpu")
    ours = optimize(classify, verify=True)
    assert type(ours) is type(classify)
    assert classify.model is source
    assert isinstance(ours.model, SublayersPreTrainedModel)
    texts = ["the cat", "a"]
    for found, expected in zip(ours(texts), classify(texts), strict=True):
        assert found == {"label": expected["label"], "score": pytest.approx(expected["score"], abs=1e-5)}
    assert restore(ours).model is source
    assert optimize(classify, verify=texts).model.origin.source is source
    with pytest.raises(ValueError, match="BertForSequenceClassification has no tokenizer to read texts with"):
        optimize(source, verify=texts)


@pytest.mark.parametrize("verify", [True, ["the cat sat on the mat", "a dog"]])
def test_outputs_that_differ_are_refused(verify, monkeypatch):
    tokenizer = train_tokenizer(["the cat sat on the mat", "a dog"], "wordpiece", 60)
    classify = pipeline("text-classification", model=make("BertForSequenceClassification"), tokenizer=tokenizer)
    monkeypatch.setitem(ENCODERS, "bert", ENCODERS["bert"]._replace(fixed={"pooler_act": "relu"}))
    optimize(classify)
    with pytest.raises(ValueError, match=r"logits differs from the source's by .* of its size"):
        optimize(classify, verify=verify)

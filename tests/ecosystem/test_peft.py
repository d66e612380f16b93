import pytest
import torch
from common import assert_same, tokens
from families import FAMILIES, build, every_family_and_todays_parts, inputs, logits
from packaging.version import Version
from torch import nn
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification

pytestmark = pytest.mark.slow

peft = pytest.importorskip("peft")
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def train(model, batch: dict[str, torch.Tensor]) -> list[float]:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.02)
    losses = []
    for _ in range(4):
        loss = model.train()(**batch).loss
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    return losses


@every_family_and_todays_parts
def test_lora_trains_adapters_alone_which_merge_into_an_ordinary_model(family, options, tmp_path):
    head = FAMILIES[family][1]
    build(family, **options).save_pretrained(tmp_path / "base")
    model = head.from_pretrained(tmp_path / "base")
    batch = inputs(model)
    before = logits(model, batch)
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules="all-linear", r=4, lora_alpha=12))
    linear = [name for name, module in build(family, **options).named_modules() if isinstance(module, nn.Linear)]
    adapters = {f"base_model.model.{name}.lora_{side}.default.weight" for name in linear for side in "AB"}
    # the output is that of the embeddings
    adapters -= {f"base_model.model.lm_head.lora_{side}.default.weight" for side in "AB"}
    assert {name for name, parameter in adapted.named_parameters() if parameter.requires_grad} == adapters

    labels = tokens(3, 7 if model.config.is_encoder_decoder else 9)
    losses = train(adapted, {name: batch[name] for name in ("input_ids", "attention_mask")} | {"labels": labels})
    assert losses[-1] < losses[0]
    after = logits(adapted, batch)
    assert not torch.allclose(after, before, atol=0.1)
    with adapted.disable_adapter():
        assert torch.equal(logits(adapted, batch), before)
    # the sums by hand
    trained, plain = dict(adapted.named_parameters()), build(family, **options)
    with torch.no_grad():
        for name in linear:
            if name != "lm_head":
                down, up = (trained[f"base_model.model.{name}.lora_{side}.default.weight"] for side in "AB")
                assert up.any(), name
                plain.get_submodule(name).weight += 12 / 4 * up @ down
    torch.testing.assert_close(after, logits(plain, batch), **CLOSE)

    adapted.save_pretrained(tmp_path / "adapter")
    again = peft.PeftModel.from_pretrained(head.from_pretrained(tmp_path / "base"), tmp_path / "adapter")
    for loaded in (again, head.from_pretrained(tmp_path / "adapter")):
        assert torch.equal(logits(loaded, batch), after)

    merged = adapted.merge_and_unload()
    assert type(merged) is type(plain)
    assert_same(dict(merged.named_parameters()), dict(plain.named_parameters()), **CLOSE)
    torch.testing.assert_close(logits(merged, batch), after, **CLOSE)
    merged.save_pretrained(tmp_path / "merged")
    loaded, report = head.from_pretrained(tmp_path / "merged", output_loading_info=True)
    assert not any(report.values()), report
    assert torch.equal(logits(loaded, batch), logits(merged, batch))


@every_family_and_todays_parts
def test_adapts_every_sublayer_by_the_names_that_the_documentation_gives(family, options):
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "r_proj", "fc1", "gate", "fc2"]
    model = build(family, **options)
    linear = {name for name, module in model.named_modules() if isinstance(module, nn.Linear) and ".layers." in name}
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=names))
    assert set(adapted.targeted_module_names) == linear


@every_family_and_todays_parts
def test_adapts_queries_and_values_where_no_names_are_given(family, options):
    model = build(family, **options)
    expected = {name for name, _ in model.named_modules() if name.endswith(("q_proj", "v_proj"))}
    assert set(peft.get_peft_model(model, peft.LoraConfig()).targeted_module_names) == expected


def test_scales_what_it_scales_of_bart_where_no_names_are_given():
    adapted = peft.get_peft_model(build("par_bert"), peft.IA3Config(task_type="TOKEN_CLS"))
    assert {name.rpartition(".")[2] for name in adapted.targeted_module_names} == {"q_proj", "v_proj", "fc2"}


@pytest.mark.parametrize("family", ["sandwich_lm", "par_bert", "macaron_bert"])
def test_a_classifier_is_trained_and_saved_in_full_beside_the_adapters(family, tmp_path):
    model = build(family, AutoModelForSequenceClassification)
    model.save_pretrained(tmp_path / "base")
    name, head = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)][-1]
    before = head.weight.clone()
    settings = peft.LoraConfig(task_type="SEQ_CLS", target_modules="all-linear", r=4, modules_to_save=[name])
    adapted = peft.get_peft_model(model, settings)
    batch = {"input_ids": tokens(3, 9), "attention_mask": torch.ones(3, 9), "labels": torch.tensor([0, 1, 1])}
    losses = train(adapted, batch)
    assert losses[-1] < losses[0]
    adapted.save_pretrained(tmp_path / "adapter")
    base = AutoModelForSequenceClassification.from_pretrained(tmp_path / "base")
    untrained = base(**batch).logits
    again = peft.PeftModel.from_pretrained(base, tmp_path / "adapter")
    assert not torch.allclose(again(**batch).logits, untrained, atol=0.1)
    assert torch.equal(again(**batch).logits, adapted(**batch).logits)
    merged = adapted.merge_and_unload()
    assert (merged.get_submodule(name).weight - before).abs().max() > 1e-3
    torch.testing.assert_close(merged(**batch).logits, again(**batch).logits, **CLOSE)


@pytest.mark.parametrize("name", ["q_proj", "k_proj", "v_proj"])
@pytest.mark.parametrize("family", ["sandwich_lm", "par_bert", "macaron_bert"])
def test_adapters_have_the_same_gradients_in_evaluation(family, name):
    settings = peft.LoraConfig(target_modules=[name], r=4, init_lora_weights=False)
    adapted = peft.get_peft_model(build(family, AutoModelForSequenceClassification), settings)
    found = []
    for training in (True, False):
        adapted.zero_grad()
        # nothing is dropped
        adapted.train(training)(**inputs(adapted)).logits.square().sum().backward()
        found.append([parameter.grad for parameter in adapted.parameters() if parameter.requires_grad])
    assert all(gradient.any() for gradient in found[0])
    torch.testing.assert_close(*found, atol=1e-4, rtol=1e-4)


@pytest.mark.skipif(Version(peft.__version__) < Version("0.22"), reason="transformers' own adapters need PEFT 0.22")
def test_adapters_of_a_self_contained_model_are_saved_alone(tmp_path):
    build("par_bert").save_pretrained(tmp_path / "base", self_contained=True)
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "base")
    model.add_adapter(peft.LoraConfig(target_modules="all-linear"))
    model.save_pretrained(tmp_path / "adapter")
    names = {path.name for path in (tmp_path / "adapter").iterdir()}
    assert names == {"adapter_config.json", "adapter_model.safetensors"}

"""Folders that somebody without this package can use."""

import json
import re
from pathlib import Path

import pytest
import torch
import transformers
from common import VOCAB, randomize, token_ids
from families import EXPERTS, HEADS, small
from launched import python
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, pipeline

from sublayers import (
    AUTO_CLASSES,
    IOTSeq2SeqConfig,
    PARBertConfig,
    PARBertForSequenceClassification,
    SandwichLMConfig,
    SandwichLMForCausalLM,
    SandwichSeq2SeqConfig,
    SandwichSeq2SeqForConditionalGeneration,
)
from sublayers.training.data.tokenizers import train_tokenizer

pytestmark = pytest.mark.slow


def python_files(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.py")}


def save_heads(root: Path):
    """Save a self-contained folder of every head of every family, with inputs."""
    for config_class, auto_class in HEADS:
        # convolutions, bands of words and experts are code, too
        if "encoder_sublayer_order" in config_class.order_fields:
            options = {"encoder_sublayer_order": "sfdlf", "decoder_sublayer_order": "scfdf"}
        else:
            known = {
                SandwichLMConfig: {"adaptive_cutoffs": [20, 40]}
                | {"sublayer_order": "gfsf", "short_kernel_size": 3, "intermediate_size": [48, 32]},
                PARBertConfig: {"sublayer_order": "sesee"} | EXPERTS,
            }
            options = known.get(config_class, {})
        model = randomize(auto_class.from_config(small(config_class, **options)))
        folder = root / type(model).__name__
        model.save_pretrained(folder, self_contained=True)
        inputs = {"input_ids": token_ids(auto_class, 2, 7)}
        if model.config.is_encoder_decoder:
            inputs["decoder_input_ids"] = token_ids(auto_class, 2, 5)
        save_file({name: ids.contiguous() for name, ids in inputs.items()}, folder / "inputs.safetensors")


QUESTION = {"question": "Who wrote it?", "context": "Ada wrote the first program."}
PIPELINES = [
    (PARBertConfig, "AutoModelForQuestionAnswering", "question-answering", QUESTION),
    (PARBertConfig, "AutoModelForSequenceClassification", "text-classification", "the first program"),
    (PARBertConfig, "AutoModelForMaskedLM", "fill-mask", "the first [MASK]"),
    (SandwichLMConfig, "AutoModelForCausalLM", "text-generation", "the first"),
    *(
        (IOTSeq2SeqConfig, "AutoModelForSeq2SeqLM", task, "the first program")
        for task in ("translation", "summarization", "text2text-generation")
    ),
]


def save_pipelines(root: Path):
    """Save a self-contained folder for every task."""
    text = "Ada wrote the first program for a machine that was never built."
    tokenizer = train_tokenizer([text], "wordpiece", VOCAB)
    for config_class, name, task, _ in PIPELINES:
        auto_class = getattr(transformers, name)
        model = randomize(auto_class.from_config(small(config_class, vocab_size=len(tokenizer))))
        if model.can_generate():
            model.generation_config.update(max_new_tokens=4, do_sample=False)
        model.save_pretrained(root / task, self_contained=True)
        tokenizer.save_pretrained(root / task)


@pytest.fixture(scope="session")
def stranger(tmp_path_factory):
    """What tests/hub/stranger.py made of our folders with an empty cache: of the heads, of pipelines, their answers."""
    heads, pipelines, home = (tmp_path_factory.mktemp(name) for name in ("heads", "pipelines", "home"))
    save_heads(heads)
    save_pipelines(pipelines)
    asked = [[str(pipelines / task), task, given] for *_, task, given in PIPELINES]
    printed = python(Path(__file__).with_name("stranger.py"), json.dumps(asked), *heads.iterdir(), home=home)
    answers = json.loads(printed.splitlines()[-1])
    return heads, pipelines, dict(zip([task for *_, task, _ in PIPELINES], answers, strict=True))


@pytest.fixture(scope="session")
def folders(stranger):
    """A self-contained folder of every head of every family, with inputs and a stranger's outputs."""
    return stranger[0]


@pytest.mark.parametrize(("config_class", "auto_class"), HEADS, ids=lambda part: part.__name__)
@pytest.mark.representatives(8)
def test_every_head_gives_a_stranger_the_same_outputs(folders, config_class, auto_class):
    folder = folders / AUTO_CLASSES[config_class][auto_class].__name__
    model = auto_class.from_pretrained(folder)
    inputs = load_file(folder / "inputs.safetensors")
    with torch.no_grad():
        expected = model(**inputs)
    if model.can_generate():
        options = {"max_new_tokens": 5, "do_sample": False, "use_cache": False}
        expected["generated"] = model.generate(inputs["input_ids"], **options)
    found = load_file(folder / "outputs.safetensors")
    assert found
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize("config_class", AUTO_CLASSES, ids=lambda part: part.__name__)
def test_whoever_has_the_package_needs_no_trust_and_saves_code_for_those_who_have_it_not(
    folders, tmp_path, config_class
):
    body = folders / AUTO_CLASSES[config_class][AutoModel].__name__
    model = AutoModel.from_pretrained(body)
    assert type(model) is AUTO_CLASSES[config_class][AutoModel]
    model.save_pretrained(tmp_path / "again")
    AutoConfig.from_pretrained(body).save_pretrained(tmp_path / "config")
    for folder in (tmp_path / "again", tmp_path / "config"):
        auto_map = json.loads((folder / "config.json").read_text())["auto_map"]
        assert len(auto_map) == len(AUTO_CLASSES[config_class]) + 1
        assert python_files(folder) == python_files(body)


@pytest.mark.parametrize("config_class", AUTO_CLASSES, ids=lambda part: part.__name__)
def test_a_stranger_who_saves_a_body_again_keeps_the_code_of_all_heads(folders, config_class):
    body = folders / AUTO_CLASSES[config_class][AutoModel].__name__
    assert python_files(body / "again") == python_files(body)
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (body, body / "again"))
    assert after["auto_map"] == before["auto_map"]
    assert after["custom_pipelines"] == before["custom_pipelines"]


def test_a_folder_has_nothing_but_its_family(folders):
    names = python_files(folders / "PARBertModel")
    assert "modeling_par_bert.py" in names
    assert not {name for name in names if "seq2seq" in name or "iot" in name or "sandwich" in name}
    for path in folders.glob("*/*.py"):
        imported = re.findall(r"^\s*from \.(\w+) import", path.read_text(), re.MULTILINE)
        assert {f"{name}.py" for name in imported} <= python_files(path.parent), path
        assert not re.search(r"^\s*(from|import) sublayers", path.read_text(), re.MULTILINE), path


def test_weights_are_safetensors_and_the_code_has_its_licence(folders):
    saved = [*folders.iterdir()]
    assert len(saved) == len(HEADS)
    for folder in saved:
        suffixes = {path.suffix for path in folder.iterdir() if path.is_file()}
        assert suffixes == {".py", ".safetensors", ".json", ".md", ""}
        assert "Apache License" in (folder / "LICENSE").read_text()


def test_without_being_asked_a_model_is_saved_as_ever(tmp_path):
    model = SandwichLMForCausalLM(small(SandwichLMConfig))
    model.save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "generation_config.json", "model.safetensors"}
    assert not json.loads((tmp_path / "config.json").read_text()).get("auto_map")


def test_registering_for_an_auto_class_is_a_request_too(tmp_path, monkeypatch):
    monkeypatch.setattr(PARBertForSequenceClassification, "_auto_class", "AutoModelForSequenceClassification")
    PARBertForSequenceClassification(small(PARBertConfig)).save_pretrained(tmp_path)
    assert "configuration_par_bert.py" in python_files(tmp_path)
    assert "from .configuration_par_bert import" in (tmp_path / "modeling_par_bert.py").read_text()
    assert len(json.loads((tmp_path / "config.json").read_text())["auto_map"]) == len(AUTO_CLASSES[PARBertConfig]) + 1


def test_code_that_is_not_ours_is_refused(tmp_path):
    class MyConfig(PARBertConfig):
        pass

    config = MyConfig(auto_map={"AutoConfig": "my.MyConfig"})
    with pytest.raises(ValueError, match="MyConfig"):
        config.save_pretrained(tmp_path)


@pytest.mark.parametrize(("task", "given"), [case[2:] for case in PIPELINES], ids=lambda part: str(part)[:20])
def test_pipelines_answer_a_stranger_as_they_answer_us(stranger, task, given):
    _, root, found = stranger
    import sublayers.pipelines  # noqa: F401

    run = pipeline(task, model=str(root / task))
    assert type(run.model).__module__.startswith("sublayers.")
    expected = run(**given) if isinstance(given, dict) else run(given)
    assert json.loads(json.dumps(expected)) == found[task]
    # what a stranger saved is whole
    assert python_files(root / task / "again") >= python_files(root / task)
    assert json.loads((root / task / "again" / "config.json").read_text())["auto_map"]


def test_part_of_a_model_and_classes_of_ones_own_are_saved_without_a_card(tmp_path):
    class MyModel(SandwichSeq2SeqForConditionalGeneration):
        pass

    model = MyModel(small(SandwichSeq2SeqConfig))
    model.save_pretrained(tmp_path / "mine", self_contained=True)
    model.get_encoder().save_pretrained(tmp_path / "encoder")
    for folder in (tmp_path / "mine", tmp_path / "encoder"):
        assert "modeling_sandwich_seq2seq.py" in python_files(folder)
        assert not (folder / "README.md").exists()

import json
import shutil

import pytest
import torch
from common_convert import edit
from families import small
from hub_metadata import metadata_errors
from safetensors.torch import load_file, save_file
from tiny_models import save_model
from transformers import AutoModelForMaskedLM, AutoModelForSeq2SeqLM, AutoTokenizer, BertConfig, BertModel

from sublayers import PARBertConfig, PARBertModel, SandwichSeq2SeqConfig
from sublayers.hub.model_card import GENERATED
from sublayers.training import cli
from sublayers.training.data.tokenizers import train_tokenizer
from sublayers.training.trainers.export import export

pytestmark = pytest.mark.slow

SCORE = {"dataset": "texts", "id": "ann/texts", "split": "test", "metric": "perplexity", "value": 9.5, "seed": 1}


@pytest.fixture
def trained(tmp_path):
    """What a training command leaves, and what it should keep for itself."""
    folder = tmp_path / "trained"
    save_model(folder)
    torch.save({"hub_token": "hf_secret"}, folder / "training_args.bin")
    (folder / "checkpoint-1").mkdir()
    (folder / "checkpoint-1" / "optimizer.pt").write_bytes(b"")
    (folder / "notes.txt").write_text("private")
    return folder


def test_a_folder_is_exported_without_what_is_not_the_models(trained, tmp_path):
    cli.main(["export", str(trained), str(tmp_path / "exported")])
    names = {path.name for path in (tmp_path / "exported").iterdir()}
    expected = {"config.json", "model.safetensors", "tokenizer.json", "README.md", "LICENSE", "modeling_par_bert.py"}
    assert expected <= names
    assert not {"training_args.bin", "checkpoint-1", "notes.txt"} & names
    before, after = (load_file(folder / "model.safetensors") for folder in (trained, tmp_path / "exported"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    tokenizers = map(AutoTokenizer.from_pretrained, (trained, tmp_path / "exported"))
    before, after = (tokenizer("Ada wrote")["input_ids"] for tokenizer in tokenizers)
    assert before == after


def test_weights_in_16_bits_are_opened_in_32(trained, tmp_path, refusal):
    cli.main(["export", str(trained), str(tmp_path / "exported"), "--weights", "bfloat16"])
    before, after = (load_file(folder / "model.safetensors") for folder in (trained, tmp_path / "exported"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name].bfloat16(), after[name]) for name in before)
    opened = AutoModelForMaskedLM.from_pretrained(tmp_path / "exported").state_dict()
    assert all(torch.equal(opened[name], after[name].float()) for name in after)
    assert {weight.dtype for weight in opened.values()} == {torch.float32}
    # what is exported or pushed again stays as it is stored
    export(tmp_path / "exported", tmp_path / "again")
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (
        tmp_path / "exported" / "model.safetensors"
    ).read_bytes()
    said = refusal("export", trained, tmp_path / "graph", "--format", "torch_export", "--weights", "bfloat16")
    assert "--weights is not for torch_export" in said


def test_the_record_of_the_run_and_a_text_of_ones_own_go_along(trained, tmp_path):
    run = {"command": "sublayers pretrain", "data": [], "seeds": [1], "machine": {}, "results": [SCORE]}
    (trained / "run.json").write_text(json.dumps(run))
    export(trained, tmp_path / "exported", "ann/mine")
    scores = tmp_path / "exported" / ".eval_results" / "sublayers.yaml"
    assert "id: ann/texts" in scores.read_text()
    card = (tmp_path / "exported" / "README.md").read_text()
    assert "sublayers pretrain" in card
    assert 'from_pretrained("ann/mine"' in card
    (trained / "README.md").write_text("my own words")
    export(trained, tmp_path / "again")
    assert (tmp_path / "again" / "README.md").read_text() == "my own words"
    assert (tmp_path / "again" / ".eval_results" / "sublayers.yaml").read_bytes() == scores.read_bytes()
    assert GENERATED in card


def test_a_card_compares_with_what_was_measured_alike(trained, tmp_path, refusal):
    for name, value in {"rival": 7.25, "stranger": 1}.items():
        save_model(tmp_path / name, sublayer_order="sfsfff")
        score = SCORE | {"value": value, "split": "test" if name == "rival" else "train"}
        (tmp_path / name / "run.json").write_text(json.dumps({"results": [score]}))
    (trained / "run.json").write_text(json.dumps({"command": "sublayers pretrain", "results": [SCORE]}))
    cli.main(["export", str(trained), str(tmp_path / "exported"), "--beside", str(tmp_path / "rival")])
    card = (tmp_path / "exported" / "README.md").read_text()
    assert metadata_errors(card) == ([], [])
    own, rival = (
        next(line for line in card.splitlines() if line.startswith(f"| {name} | encoder"))
        for name in ("exported", "rival")
    )
    assert own.endswith(" | 9.5 |")
    assert rival.endswith(" | 7.25 |")
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "rival")
    assert f"| encoder (sf)2f2 | {model.num_parameters():,} |" in rival
    # as `sublayers glue` leaves them
    tasks = [shutil.copytree(tmp_path / "rival", tmp_path / name / "mrpc") for name in ("one", "two")]
    export(trained, tmp_path / "compared", beside=tasks)
    card = (tmp_path / "compared" / "README.md").read_text()
    assert "| one | encoder" in card
    assert "| two | encoder" in card
    said = refusal("export", trained, tmp_path / "again", "--beside", tmp_path / "stranger")
    assert "stranger was not measured on what this model was" in said
    assert not (tmp_path / "again").exists()


def test_a_model_that_lacks_weights_is_refused(trained, tmp_path):
    weights = load_file(trained / "model.safetensors")
    weights.pop("model.layers.0.mixer.q_proj.weight")
    save_file(weights, trained / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"layers\.0\.mixer\.q_proj\.weight"):
        export(trained, tmp_path / "exported")
    assert not (tmp_path / "exported").exists()


def test_what_is_no_model_of_ours_is_refused(trained, tmp_path):
    config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    BertModel(config).save_pretrained(tmp_path / "bert")
    with pytest.raises(ValueError, match="bert holds BertModel of type 'bert', no model of this package"):
        export(tmp_path / "bert", tmp_path / "exported")
    foreign, unfit = "trained holds .* of type 'par_bert', no model of this package", "^architectures=.* does not fit"
    for named in (3, [3], [["x"]], {"x": 1}, ["X"], [], None):
        edit(trained / "config.json", architectures=named)
        with pytest.raises(ValueError, match=foreign if named in (["X"], [], None) else unfit):
            export(trained, tmp_path / "exported")


def test_pickles_are_not_read(tmp_path):
    model = PARBertModel(small(PARBertConfig))
    model.config.architectures = ["PARBertModel"]
    model.config.save_pretrained(tmp_path / "old")
    torch.save(model.state_dict(), tmp_path / "old" / "pytorch_model.bin")
    with pytest.raises(OSError, match="safetensors"):
        export(tmp_path / "old", tmp_path / "exported")


def test_a_folder_says_of_code_only_what_is_there(trained, tmp_path):
    edit(trained / "config.json", auto_map={})
    export(trained, tmp_path / "exported")
    named = json.loads((tmp_path / "exported" / "config.json").read_text())["auto_map"].values()
    assert named
    assert all((tmp_path / "exported" / f"{name.partition('.')[0]}.py").exists() for name in named)
    assert "trust_remote_code=True" in (tmp_path / "exported" / "README.md").read_text()


def test_a_tokenizer_forgets_code_that_it_does_not_need_and_is_refused_with_what_it_needs(trained, tmp_path):
    file, evil = trained / "tokenizer_config.json", {"AutoTokenizer": [None, "evil.T"]}
    edit(file, auto_map=evil, tokenizer_class="BertTokenizer")
    export(trained, tmp_path / "exported")
    assert "evil" not in (tmp_path / "exported" / "tokenizer_config.json").read_text()
    edit(file, auto_map={"AutoTokenizer": ["evil.T", None]}, tokenizer_class="T")
    with pytest.raises(ValueError, match="needs code of its own, which is not run"):
        export(trained, tmp_path / "again")


@pytest.mark.parametrize(("name", "content"), [("README.md", b"Gr\xf6\xdfe"), ("run.json", b"{"), ("run.json", b"[]")])
def test_a_card_or_record_that_cannot_be_read_is_one_sentence(trained, tmp_path, refusal, name, content):
    (trained / name).write_bytes(content)
    assert f"{trained}/{name} is no" in refusal("export", trained, tmp_path / "exported")
    assert [path.name for path in tmp_path.iterdir()] == ["trained"]


def test_both_tokenizers_of_two_vocabularies_go_along(tmp_path):
    config = small(SandwichSeq2SeqConfig, encoder_vocab_size=50, share_encoder_decoder_embeddings=False)
    AutoModelForSeq2SeqLM.from_config(config).save_pretrained(tmp_path / "trained")
    for folder, text in {"": "eins zwei", "target_tokenizer": "one two"}.items():
        train_tokenizer([text] * 2, "wordpiece", 40).save_pretrained(tmp_path / "trained" / folder)
    export(tmp_path / "trained", tmp_path / "exported")
    for folder, text in {"": "eins", "target_tokenizer": "one"}.items():
        assert AutoTokenizer.from_pretrained(tmp_path / "exported" / folder).tokenize(text) == [text]


def test_the_card_of_a_converted_model_says_where_its_weights_are_from(tmp_path):
    config = BertConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=1, intermediate_size=8)
    BertModel(config).save_pretrained(tmp_path / "bert")
    cli.main(["convert", str(tmp_path / "bert"), str(tmp_path / "ours"), "--sublayer_order", "sfsfs"])
    export(tmp_path / "ours", tmp_path / "exported")
    card = (tmp_path / "exported" / "README.md").read_text()
    assert metadata_errors(card) == ([], [])
    assert "sublayers convert bert ours --sublayer_order sfsfs" in card
    assert "| started from | bert |" in card
    assert "* new, with random weights: layers.4.norm.weight, " in card
    assert "may be random" not in card

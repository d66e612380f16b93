"""transformers' own ways to the Hub, with our models: the Trainer's, and `push_to_hub` of models and tokenizers."""

import json

import pytest
import torch
from hub_repository import ANN, BOB
from huggingface_hub import HfApi, ModelCard
from launched import python
from tiny_models import save_model
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

pytestmark = pytest.mark.slow

pytest_plugins = ["hub_server"]
PUSHING = {"push_to_hub": True, "hub_model_id": "ann/model", "report_to": "none", "use_cpu": True}
TEXTS = ["red green blue", "yellow black", "white red", "blue blue green"]


@pytest.fixture
def saved(tmp_path):
    return save_model(tmp_path / "mine", head=AutoModelForSequenceClassification, texts=TEXTS)


@pytest.fixture
def model(saved):
    return saved[0]


@pytest.fixture
def tokenizer(saved):
    return saved[1]


def assert_published(model, tokenizer, cache_dir, **options):
    """Compare what a newcomer gets from ann/model with what there is."""
    loaded = AutoModelForSequenceClassification.from_pretrained("ann/model", cache_dir=cache_dir, **options)
    expected = model.state_dict()
    assert loaded.state_dict().keys() == expected.keys()
    for name, weight in loaded.state_dict().items():
        torch.testing.assert_close(weight, expected[name], rtol=0, atol=0, msg=name)
    if tokenizer:
        same = AutoTokenizer.from_pretrained("ann/model", cache_dir=cache_dir, **options)
        assert same(TEXTS) == tokenizer(TEXTS)


OPEN = """
import sys
from transformers import AutoModelForSequenceClassification, AutoTokenizer
sys.modules["sublayers"] = None
model = AutoModelForSequenceClassification.from_pretrained("ann/model", trust_remote_code=True)
print(model(**AutoTokenizer.from_pretrained("ann/model", trust_remote_code=True)("red", return_tensors="pt")).logits)
"""


def assert_has_code(hub):
    files = hub.repositories["ann/model"].files()
    named = json.loads(files["config.json"].content)["auto_map"]
    assert "AutoModelForSequenceClassification" in named
    assert {f"{name.split('.')[0]}.py" for name in named.values()} < files.keys()


@pytest.mark.parametrize("opens", [False, pytest.param(True, marks=pytest.mark.full)])
def test_the_trainer_publishes_what_it_trained_with_its_code_at_every_checkpoint(
    hub, model, tokenizer, tmp_path, capfd, opens
):
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    rows = [{**tokenizer(text), "labels": i % 2} for i, text in enumerate(TEXTS)]
    settings = {"max_steps": 2, "learning_rate": 0.1, "hub_private_repo": True}
    settings |= {"save_steps": 1, "hub_strategy": "every_save"}
    arguments = TrainingArguments(str(tmp_path / "run"), **PUSHING, **settings)
    trainer = Trainer(model=model, args=arguments, train_dataset=rows, processing_class=tokenizer)
    trainer.train()
    assert_has_code(hub)
    trainer.push_to_hub()
    assert_has_code(hub)
    assert any((weight != before[name]).any() for name, weight in model.state_dict().items())
    assert_published(model, tokenizer, tmp_path / "empty")
    repository = hub.repositories["ann/model"]
    assert repository.private
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} < repository.files().keys()
    assert ModelCard(repository.files()["README.md"].content.decode()).data.library_name == "transformers"
    assert not any(ANN.encode() in file.content for file in repository.files().values())
    assert ANN not in "".join(capfd.readouterr())
    if opens:
        assert "tensor" in python("-c", OPEN, **hub.environment(tmp_path / "home", token=ANN))


def test_a_model_publishes_itself_in_one_commit(hub, model, tmp_path):
    model.push_to_hub("ann/model", commit_message="Look", private=True, tags=["colours"])
    assert_published(model, None, tmp_path / "empty")
    assert [commit.title for commit in HfApi().list_repo_commits("ann/model")] == ["Look", "initial commit"]
    repository = hub.repositories["ann/model"]
    assert repository.private
    # whoever lacks the package finds the code there
    config = AutoConfig.from_pretrained("ann/model", cache_dir=tmp_path / "empty")
    assert config.auto_map.keys() > {"AutoConfig", "AutoModel", "AutoModelForSequenceClassification"}
    assert {f"{value.split('.')[0]}.py" for value in config.auto_map.values()} < repository.files().keys()
    assert "LICENSE" in repository.files()
    card = ModelCard(repository.files()["README.md"].content.decode())
    assert card.data.pipeline_tag == "text-classification"
    assert 'from_pretrained("ann/model", trust_remote_code=True)' in card.text
    assert "colours" in card.data.tags


def test_a_model_publishes_itself_as_transformers_models_do(hub, model, tmp_path, monkeypatch):
    model.push_to_hub("model", revision="v2", max_shard_size="10KB", commit_description="small", token=ANN)
    assert_published(model, None, tmp_path / "empty", revision="v2")
    assert "model.safetensors.index.json" in hub.repositories["ann/model"].files("v2")
    assert hub.repositories["ann/model"].files().keys() == {".gitattributes"}
    commit = model.push_to_hub("ann/model", token=BOB, create_pr=True)
    assert commit.pr_url.startswith(hub.url)
    model.save_pretrained(tmp_path / "saved", push_to_hub=True, repo_id="ann/model")
    model.save_pretrained(tmp_path / "other", push_to_hub=True, private=True, commit_message="Hidden", tags=["colours"])
    hidden = hub.repositories["ann/other"]
    assert (hidden.private, hidden.commit().title) == (True, "Hidden")
    model.config.save_pretrained(tmp_path / "third", push_to_hub=True, private=True)
    assert hub.repositories["ann/third"].private
    assert_published(model, None, tmp_path / "empty")
    with pytest.raises(PermissionError, match="ann/model"):
        model.push_to_hub("ann/model", token=BOB)


def test_a_card_that_somebody_wrote_stays_and_a_draft_does_not(hub, model, tokenizer, tmp_path):
    # transformers gives it a card full of gaps
    tokenizer.push_to_hub("ann/model")
    assert "[More Information Needed]" in card_of(hub)
    model.push_to_hub("ann/model")
    assert "[More Information Needed]" not in card_of(hub)
    assert "## Sizes and costs" in card_of(hub)
    assert_published(model, tokenizer, tmp_path / "empty")
    tokenizer.push_to_hub("ann/model")
    assert HfApi().model_info("ann/model").pipeline_tag == "text-classification"
    HfApi().upload_file(path_or_fileobj=b"My own words.", path_in_repo="README.md", repo_id="ann/model")
    model.push_to_hub("ann/model")
    assert card_of(hub) == "My own words."


def card_of(hub):
    return hub.repositories["ann/model"].files()["README.md"].content.decode()

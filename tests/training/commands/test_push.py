import functools
import shutil
import traceback

import numpy as np
import pytest
import torch
from hub_repository import ANN, BOB, File
from huggingface_hub import HfApi, lfs
from safetensors.numpy import save_file
from tiny_models import save_model
from transformers import AutoModelForMaskedLM, BertConfig, BertModel

from sublayers.hub.upload import upload
from sublayers.training.commands.push import main

pytestmark = pytest.mark.slow

pytest_plugins = ["hub_server"]
IDS = [[5, 6, 7, 8, 9]]


@pytest.fixture
def model(tmp_path):
    return save_model(tmp_path / "model")[0]


@pytest.fixture
def folder(tmp_path):
    """What stands for a model where its content is of no interest: two files, the second one for LFS."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/config.json").write_text("{}")
    save_file({"weight": np.arange(100.0)}, tmp_path / "folder/model.safetensors")
    return tmp_path / "folder"


@pytest.fixture
def impatient(monkeypatch):
    """A client that does not wait and try again five times."""
    monkeypatch.setattr(lfs, "http_backoff", functools.partial(lfs.http_backoff, max_retries=0))


def files_of(hub, name="ann/model", revision="main"):
    return {path: file.content for path, file in hub.repositories[name].files(revision).items()}


def logits(model):
    with torch.no_grad():
        return model(torch.tensor(IDS)).logits.numpy()


def assert_published(model, **where):
    loaded = AutoModelForMaskedLM.from_pretrained("ann/model", **where)
    np.testing.assert_allclose(logits(loaded), logits(model), atol=1e-6)


def test_a_private_repository_is_for_its_owner(hub, model, tmp_path, capsys):
    main([str(tmp_path / "model"), "ann/model", "--private", "--commit_message", "First model"])
    assert f"{hub.url}/ann/model\n" in capsys.readouterr().out
    assert [commit.title for commit in HfApi().list_repo_commits("ann/model")] == ["First model", "initial commit"]
    assert {"config.json", "tokenizer.json", "README.md", "LICENSE", "modeling_par_bert.py"} < files_of(hub).keys()
    assert hub.repositories["ann/model"].files()["model.safetensors"].lfs
    assert hub.repositories["ann/model"].private
    with pytest.raises(OSError, match="ann/model"):
        AutoModelForMaskedLM.from_pretrained("ann/model", token=BOB)
    assert_published(model)


@pytest.mark.parametrize("flags", [[], ["--revision", "new"]])
def test_a_public_repository_does_not_pass_for_a_private_one(hub, model, tmp_path, flags):
    HfApi().create_repo("ann/model")
    with pytest.raises(ValueError, match="ann/model is public"):
        main([str(tmp_path / "model"), "ann/model", "--private", *flags])
    assert hub.repositories["ann/model"].refs.keys() == {"refs/heads/main"}
    assert files_of(hub).keys() == {".gitattributes"}


@pytest.mark.parametrize(
    ("token", "repository", "said"),
    [
        ("", "ann/model", "hf auth login"),
        ("hf_madeUpSecret", "ann/model", "hf auth login"),
        (ANN, "bob/model", "may not write to bob/model"),
        (ANN, "nobody/model", "may not write to nobody/model"),
        (ANN, "model", "USER/NAME"),
        (ANN, "ann/my model", "'ann/my model'"),
        (ANN, "ann/model--2", "'ann/model--2'"),
    ],
)
def test_who_may_not_push_is_told_so_in_a_sentence(hub, model, tmp_path, monkeypatch, refusal, token, repository, said):
    monkeypatch.setenv("HF_TOKEN", token)
    error = refusal("push", tmp_path / "model", repository)
    assert said in error
    assert not token or token not in error
    assert not hub.repositories
    assert not hub.storage


def test_what_is_published_is_not_replaced_unasked(hub, model, tmp_path):
    folder = str(tmp_path / "model")
    main([folder, "ann/model"])
    before = files_of(hub)
    with torch.no_grad():
        model.get_input_embeddings().weight.fill_(0.5)
    model.save_pretrained(folder)
    hub.requests.clear()
    with pytest.raises(FileExistsError, match=r"ann/model holds .* add --overwrite"):
        main([folder, "ann/model"])
    assert all(request.startswith("GET") for request in hub.requests)
    assert files_of(hub) == before
    main([folder, "ann/model", "--overwrite"])
    loaded = AutoModelForMaskedLM.from_pretrained("ann/model")
    assert (loaded.get_input_embeddings().weight == 0.5).all()


def test_a_branch_is_made_and_main_left_alone(hub, model, tmp_path):
    main([str(tmp_path / "model"), "ann/model", "--revision", "v2"])
    assert files_of(hub).keys() == {".gitattributes"}
    assert_published(model, revision="v2")
    model.get_input_embeddings().weight.data.fill_(0.5)
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(FileExistsError, match="ann/model holds"):
        main([str(tmp_path / "model"), "ann/model", "--revision", "v2"])


@pytest.mark.parametrize("request_line", ["PUT /storage/.*", "POST /api/models/.*/commit/.*", "POST .*/verify"])
@pytest.mark.representatives(1)
def test_a_push_that_breaks_shows_nothing_and_can_be_completed(hub, model, tmp_path, impatient, request_line):
    hub.cut(request_line, after=0)
    with pytest.raises(ConnectionError, match="push again"):
        main([str(tmp_path / "model"), "ann/model"])
    assert files_of(hub).keys() == {".gitattributes"}
    hub.repair()
    main([str(tmp_path / "model"), "ann/model"])
    assert_published(model)


def test_a_push_whose_answer_is_lost_stands_and_says_so(hub, model, tmp_path, capsys):
    hub.lose("POST .*/commit/.*")
    main([str(tmp_path / "model"), "ann/model", "--commit_message", "Mine"])
    assert f"is published at {hub.url}/ann/model\n" in capsys.readouterr().out
    assert_published(model)
    assert [commit.title for commit in HfApi().list_repo_commits("ann/model")] == ["Mine", "initial commit"]


@pytest.mark.full
def test_who_cannot_look_says_so_and_a_second_push_finds_it_done(hub, model, tmp_path, capsys, refusal):
    hub.lose("POST .*/commit/.*|GET .*/commits/.*")
    unknown = "it is not known whether ann/model is complete; look there, or push again"
    assert unknown in refusal("push", tmp_path / "model", "ann/model")
    hub.repair()
    before = files_of(hub)
    main([str(tmp_path / "model"), "ann/model"])
    assert "is published at" in capsys.readouterr().out
    assert files_of(hub) == before
    assert len(HfApi().list_repo_commits("ann/model")) == 2
    # another model, or one file more, is not what would be pushed
    hub.repositories["ann/model"].files()["more.txt"] = File(b"")
    with pytest.raises(FileExistsError, match="add --overwrite"):
        main([str(tmp_path / "model"), "ann/model"])


def test_a_lost_answer_does_not_pass_for_files_that_are_not_there(hub, folder):
    upload(folder, "ann/model")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    hub.cut("POST .*/commit/.*")
    with pytest.raises(ConnectionError, match="broke before ann/model was complete"):
        upload(folder, "ann/model")
    hub.repair()
    hub.lose("POST .*/commit/.*")
    commit = upload(folder, "ann/model", commit_message="Shards")
    assert (commit.commit_message, commit.oid) == ("Shards", hub.repositories["ann/model"].refs["refs/heads/main"])
    assert "model.safetensors" not in files_of(hub)
    # where a proposal is, nobody can tell
    (folder / "config.json").write_text("[]")
    with pytest.raises(ConnectionError, match="not known"):
        upload(folder, "ann/model", create_pr=True)


def test_an_upload_that_breaks_between_files_leaves_what_was_published(hub, folder, impatient):
    upload(folder, "ann/model")
    before = files_of(hub)
    for number in range(3):
        save_file({"weight": np.full(10, number)}, folder / f"model-{number}.safetensors")
    hub.cut("PUT /storage/.*", after=2)
    with pytest.raises(ConnectionError):
        upload(folder, "ann/model")
    assert files_of(hub) == before
    hub.repair()
    hub.requests.clear()
    upload(folder, "ann/model")
    # two of three were there already
    assert sum(request.startswith("PUT") for request in hub.requests) == 1
    assert files_of(hub).keys() == before.keys() | {f"model-{number}.safetensors" for number in range(3)}


def test_old_weights_do_not_stay_beside_new_ones(hub, folder):
    upload(folder, "ann/model")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    (folder / "model.safetensors.index.json").write_text("{}")
    upload(folder, "ann/model")
    names = {".gitattributes", "config.json", "model-00001-of-00001.safetensors", "model.safetensors.index.json"}
    assert files_of(hub).keys() == names
    assert len(HfApi().list_repo_commits("ann/model")) == 3
    # who has no weights to offer leaves those that are there alone
    for path in folder.glob("model*"):
        path.unlink()
    upload(folder, "ann/model")
    assert files_of(hub).keys() == names


def test_old_scores_do_not_stay_beside_new_weights(hub, folder):
    (folder / ".eval_results").mkdir()
    for name in ("sublayers", "theirs"):
        (folder / ".eval_results" / f"{name}.yaml").write_text("[]")
    upload(folder, "ann/model")
    assert {".eval_results/sublayers.yaml", ".eval_results/theirs.yaml"} < files_of(hub).keys()
    shutil.rmtree(folder / ".eval_results")
    upload(folder, "ann/model")
    assert [name for name in files_of(hub) if name.startswith(".eval")] == [".eval_results/theirs.yaml"]


def test_upload_makes_pull_requests_for_others(hub, folder):
    HfApi().create_repo("ann/model")
    with pytest.raises(PermissionError, match="may not write to ann/model"):
        upload(folder, "ann/model", token=BOB)
    commit = upload(folder, "ann/model", token=BOB, create_pr=True, commit_message="Mine", commit_description="better")
    assert commit.pr_url == f"{hub.url}/ann/model/discussions/1"
    [told, _] = HfApi().list_repo_commits("ann/model", revision="refs/pr/1")
    assert (told.title, told.message) == ("Mine", "better")
    assert files_of(hub).keys() == {".gitattributes"}
    assert "config.json" in files_of(hub, revision="refs/pr/1")


def test_upload_takes_a_name_under_the_own_and_subfolders(hub, folder):
    (folder / "target").mkdir()
    (folder / "target/tokenizer.json").write_text("{}")
    upload(folder, "model", private=True)
    assert hub.repositories["ann/model"].private
    assert "target/tokenizer.json" in files_of(hub)


@pytest.mark.parametrize("target", ["secret.txt", "secrets", "folder/../secret.txt"])
def test_links_out_of_the_folder_are_refused(hub, folder, tmp_path, target):
    (tmp_path / "secret.txt").write_text("my secret")
    (tmp_path / "secrets").mkdir()
    (folder / "inner").mkdir()
    (folder / "inner/link").symlink_to(tmp_path / target)
    with pytest.raises(ValueError, match="inner/link leads out of the folder"):
        upload(folder, "ann/model")
    assert not hub.repositories
    (folder / "inner/link").unlink()
    (folder / "link").symlink_to("config.json")
    upload(folder, "ann/model")
    assert files_of(hub)["link"] == b"{}"


def test_a_card_that_the_hub_refuses_is_refused_before_the_weights_are_sent(hub, folder):
    (folder / "README.md").write_text("---\nlicense: my-own\n---\n")
    with pytest.raises(ValueError, match=r"license.* with value 'my-own' is not valid") as error:
        upload(folder, "ann/model")
    assert "\n" not in str(error.value)
    assert not hub.storage


@pytest.mark.parametrize("content", [None, "nothing", "bert"])
def test_what_is_no_model_of_ours_is_refused_in_a_sentence(hub, tmp_path, refusal, content):
    folder = tmp_path / "foreign"
    if content:
        folder.mkdir()
    if content == "bert":
        BertModel(BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2)).save_pretrained(folder)
    assert str(folder) in refusal("push", folder, "ann/model")
    assert not hub.repositories
    if content != "bert":
        with pytest.raises(FileNotFoundError, match=r"foreign (is no folder|holds no files)"):
            upload(folder, "ann/model")


def test_a_hub_that_is_not_there_is_called_so(hub, folder, monkeypatch):
    hub.cut(".*")
    with pytest.raises(ConnectionError, match="ann/model"):
        upload(folder, "ann/model")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConnectionError, match="HF_HUB_OFFLINE"):
        upload(folder, "ann/model")


def test_the_token_is_written_nowhere(hub, model, tmp_path, capfd, caplog):
    caplog.set_level("DEBUG")
    hub.cut("POST .*/commit/.*")
    with pytest.raises(ConnectionError) as error:
        main([str(tmp_path / "model"), "ann/model", "--private"])
    said = "".join(traceback.format_exception(error.value))
    hub.repair()
    main([str(tmp_path / "model"), "ann/model", "--private"])
    AutoModelForMaskedLM.from_pretrained("ann/model")
    assert ANN not in said + caplog.text + "".join(capfd.readouterr())
    written = [path for path in tmp_path.rglob("*") if path.is_file() and ANN.encode() in path.read_bytes()]
    assert not written
    assert not any(ANN.encode() in content for content in files_of(hub).values())

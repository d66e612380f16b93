"""The server speaks with the real client as the Hub does, where our other tests rely on it."""

import re
from pathlib import Path

import pytest
from hub_repository import ANN, BOB
from huggingface_hub import CommitOperationAdd, HfApi, hf_hub_download, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, RemoteEntryNotFoundError

pytestmark = pytest.mark.slow
pytest_plugins = ["hub_server"]
WEIGHTS = bytes(range(256)) * 100


@pytest.fixture
def api(hub):
    api = HfApi()
    api.create_repo("ann/model")
    files = {"model.safetensors": WEIGHTS, "config.json": b"{}", "folder/a.txt": b"a"}
    api.create_commit("ann/model", [CommitOperationAdd(*file) for file in files.items()], commit_message="first")
    return api


def test_what_is_committed_is_listed_and_read_back(hub, api, tmp_path):
    assert api.whoami()["name"] == "ann"
    files = {entry.path: entry for entry in api.list_repo_tree("ann/model", recursive=True)}
    assert files.keys() == {".gitattributes", "model.safetensors", "config.json", "folder", "folder/a.txt"}
    assert files["model.safetensors"].lfs.size == len(WEIGHTS)
    assert files["config.json"].lfs is None
    assert any(request.startswith("PUT /storage/") for request in hub.requests)
    folder = Path(snapshot_download("ann/model"))
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert (folder / "folder/a.txt").read_text() == "a"
    assert [commit.title for commit in api.list_repo_commits("ann/model")] == ["first", "initial commit"]
    with pytest.raises(RemoteEntryNotFoundError):
        hf_hub_download("ann/model", "missing.json")


def test_branches_and_pull_requests(hub, api):
    api.create_branch("ann/model", branch="other")
    api.upload_file(path_or_fileobj=b"1", path_in_repo="one", repo_id="ann/model", revision="other")
    other = {"path_or_fileobj": b"2", "path_in_repo": "two", "repo_id": "ann/model"}
    assert HfApi(token=BOB).upload_file(**other, create_pr=True).pr_revision == "refs/pr/1"
    assert api.file_exists("ann/model", "one", revision="other")
    assert api.file_exists("ann/model", "two", revision="refs/pr/1")
    assert not api.file_exists("ann/model", "one")
    assert not api.file_exists("ann/model", "two")


@pytest.mark.parametrize(("token", "status"), [(False, 401), (BOB, 404), ("hf_wrong", 401)])
def test_what_is_private_is_for_its_owner(hub, api, token, status):
    api.create_repo("ann/secret", private=True)
    assert HfApi(token=ANN).model_info("ann/secret").private
    with pytest.raises(HfHubHTTPError) as error:
        HfApi(token=token).model_info("ann/secret")
    assert error.value.response.status_code == status
    with pytest.raises(HfHubHTTPError):
        HfApi(token=token).create_repo("ann/third")
    with pytest.raises(HfHubHTTPError):
        HfApi(token=token).upload_file(path_or_fileobj=b"1", path_in_repo="one", repo_id="ann/model")


CARD = """---
license: apache-2.0
language: [en, de]
library_name: transformers
pipeline_tag: translation
tags: [sublayers]
datasets: [ann/sentences, multi30k]
metrics: [bleu]
model-index:
- name: model
  results:
  - task: {type: translation}
    dataset: {name: Multi30k, type: multi30k, split: test}
    metrics: [{type: bleu, value: 41.5}]
---
# Model
"""


@pytest.mark.parametrize(
    ("right", "wrong", "name"),
    [
        ("apache-2.0", "apache-2", "license"),
        ("apache-2.0", "other", "license_name"),
        # yaml reads the code of Norwegian as a boolean
        ("[en, de]", "[en, no]", "language"),
        ("transformers", "transformer", "library_name"),
        ("pipeline_tag: translation", "pipeline_tag: translate", "pipeline_tag"),
        ("[sublayers]", "[1]", "tags"),
        ("ann/sentences", "/sentences", "datasets"),
        ("[bleu]", "[sacre bleu]", "metrics"),
        ("- name: model", "- title: model", "model-index[0].name"),
        ("task: {type", "task: {name", "model-index[0].results[0].task.type"),
        ("split: test", "split: 3", "split"),
        ("{name: Multi30k, ", "{", "model-index[0].results[0].dataset.name"),
        ("value: 41.5", "value: .nan", "model-index[0].results[0].metrics[0].value"),
        ("license: apache-2.0", "license: [", "YAML"),
    ],
)
def test_metadata_is_checked(api, right, wrong, name):
    api.upload_file(path_or_fileobj=CARD.encode(), path_in_repo="README.md", repo_id="ann/model")
    assert api.model_info("ann/model").pipeline_tag == "translation"
    assert api.model_info("ann/model").card_data.eval_results[0].metric_value == 41.5
    card = CARD.replace(right, wrong, 1)
    assert card != CARD
    with pytest.raises(ValueError, match=re.escape(name)):
        api.upload_file(path_or_fileobj=card.encode(), path_in_repo="README.md", repo_id="ann/model")

"""The server speaks with the real client as the Hub does, where our other tests rely on it."""

import contextlib
import re
from pathlib import Path

import pytest
from hub_repository import ANN, BOB, File
from huggingface_hub import CommitOperationAdd, HfApi, hf_hub_download, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, RemoteEntryNotFoundError, RepositoryNotFoundError
from huggingface_hub.file_download import http_get

pytestmark = pytest.mark.slow
pytest_plugins = ["hub_server"]
WEIGHTS = bytes(range(256)) * 100


@pytest.fixture
def api(hub):
    api = HfApi()
    api.create_repo("ann/model")
    api.create_commit(
        "ann/model",
        [
            CommitOperationAdd("model.safetensors", WEIGHTS),
            CommitOperationAdd("config.json", b"{}"),
            CommitOperationAdd("folder/a.txt", b"a"),
        ],
        commit_message="first",
    )
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


def test_a_download_goes_on_where_it_broke(hub, api, tmp_path):
    unfinished = tmp_path / "model.safetensors"
    unfinished.write_bytes(WEIGHTS[:10000])
    with unfinished.open("ab") as file:
        http_get(f"{hub.url}/ann/model/resolve/main/model.safetensors", file, resume_size=10000, expected_size=25600)
    assert unfinished.read_bytes() == WEIGHTS


def test_trees_come_in_pages(hub, api):
    hub.page_size = 1
    assert len(list(api.list_repo_tree("ann/model", recursive=True))) == 5
    assert [e.path for e in api.list_repo_tree("ann/model", "folder")] == ["folder/a.txt"]


def test_branches_tags_and_pull_requests(hub, api):
    api.create_branch("ann/model", branch="other")
    api.create_tag("ann/model", tag="v1")
    with pytest.raises(HfHubHTTPError, match="409"):
        api.create_tag("ann/model", tag="v1")
    api.upload_file(path_or_fileobj=b"1", path_in_repo="one", repo_id="ann/model", revision="other")
    proposed = HfApi(token=BOB).upload_file(
        path_or_fileobj=b"2", path_in_repo="two", repo_id="ann/model", create_pr=True
    )
    assert proposed.pr_revision == "refs/pr/1"
    assert api.file_exists("ann/model", "one", revision="other")
    assert api.file_exists("ann/model", "two", revision="refs/pr/1")
    assert not api.file_exists("ann/model", "one")
    assert not api.file_exists("ann/model", "two")
    refs = api.list_repo_refs("ann/model", include_pull_requests=True)
    assert {branch.name for branch in refs.branches} == {"main", "other"}
    assert [tag.name for tag in refs.tags] == ["v1"]
    assert refs.tags[0].target_commit == api.model_info("ann/model").sha
    api.delete_branch("ann/model", branch="other")
    api.delete_tag("ann/model", tag="v1")
    assert len(api.list_repo_refs("ann/model").branches) == 1
    assert not api.list_repo_refs("ann/model").tags


def test_a_commit_on_an_old_parent_is_refused(api):
    old = api.model_info("ann/model").sha
    api.upload_file(path_or_fileobj=b"1", path_in_repo="one", repo_id="ann/model", parent_commit=old)
    with pytest.raises(HfHubHTTPError, match="412"):
        api.upload_file(path_or_fileobj=b"2", path_in_repo="two", repo_id="ann/model", parent_commit=old)


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


def test_a_deleted_repository_is_gone(hub, api):
    with pytest.raises(HfHubHTTPError, match="409"):
        api.create_repo("ann/model")
    api.delete_repo("ann/model")
    with pytest.raises(RepositoryNotFoundError):
        api.model_info("ann/model")


@pytest.mark.parametrize("path", ["../../../../../evil.txt", "folder/../../../../../../evil.txt", "{}/evil.txt"])
def test_evil_paths_in_a_listing_stay_out_of_the_file_system(hub, api, tmp_path, path):
    path = path.format(tmp_path)
    hub.repositories["ann/model"].files()[path] = File(b"evil")
    assert path in api.list_repo_files("ann/model")
    # the client refuses some and leaves others out
    with contextlib.suppress(ValueError):
        snapshot_download("ann/model")
    assert not list(tmp_path.rglob("evil.txt"))


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

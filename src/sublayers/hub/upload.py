"""Publish a folder on the Hugging Face Hub, whole or not at all."""

import fnmatch
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HTTPError, OfflineModeIsEnabled

from sublayers.hub.loading import refuse_links_out
from sublayers.hub.model_card import CARD, EVAL_RESULTS, is_draft

WEIGHTS = "model*.safetensors*"


def upload(
    folder: str | Path,
    repo_id: str,
    *,
    private: bool | None = None,
    token: str | bool | None = None,
    revision: str | None = None,
    create_pr: bool = False,
    commit_message: str | None = None,
    commit_description: str | None = None,
) -> CommitInfo:
    """Put the files of a folder into a repository, in one commit.

    The repository and the branch are made where they are missing. Files of the same names are replaced, except that a
    generated card does not replace one written by hand. Weights that the folder does not have are removed, since a
    loader may prefer an old file to new shards, and with them the scores that we wrote beside a card. After an error,
    the repository shows what it showed before; a second call completes the upload. Where the Hub's answer is lost, the
    repository is asked what it holds.

    Args:
        folder: what to upload, with all folders in it.
        repo_id: user/name, or a name under the user whose token it is.
        private: whether a repository that is made here is private; one that exists stays as it is.
        token: a token that may write; the one of `hf auth login` or HF_TOKEN where it is None.
        revision: branch to commit to, the default branch where it is None.
        create_pr: propose the commit as a pull request.
        commit_message: title of the commit.
        commit_description: what the commit says below its title.

    Returns:
        What is known of the commit, such as its `commit_url`.

    Raises:
        FileNotFoundError: there is no such folder, or no file in it.
        ValueError: a link leads out of the folder, the repository has no valid name, or the Hub refuses a file.
        PermissionError: the token is missing or wrong, or may not write there.
        ConnectionError: the Hub cannot be reached, or the connection broke and the files are not there.
    """
    folder = Path(folder)
    files = _files_of(folder)
    api = HfApi(token=token, library_name="sublayers")
    with hub_errors(repo_id):
        repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        if revision is not None and not revision.startswith("refs/pr/"):
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        if CARD in files and is_draft(files[CARD]) and _has_own_card(api, repo_id, revision):
            del files[CARD]
        stale: set[str] = set()
        if fnmatch.filter(files, WEIGHTS):
            held_before = api.list_repo_files(repo_id, revision=revision)
            stale = {*fnmatch.filter(held_before, WEIGHTS), *fnmatch.filter(held_before, EVAL_RESULTS)} - files.keys()
    try:
        with hub_errors(repo_id):
            # not `upload_folder`, which makes several commits when it can
            return api.create_commit(
                repo_id,
                [CommitOperationDelete(name) for name in sorted(stale)]
                + [CommitOperationAdd(name, path) for name, path in files.items()],
                commit_message=commit_message or "Upload model",
                commit_description=commit_description,
                revision=revision,
                create_pr=create_pr,
            )
    except ConnectionError as error:
        unknown = ConnectionError(
            f"the connection to the Hub broke, and it is not known whether {repo_id} is complete; look there, or push "
            "again, which sends what has not arrived"
        )
        if create_pr:
            raise unknown from error
        try:
            with hub_errors(repo_id):
                last = api.list_repo_commits(repo_id, revision=revision)[0]
                found = api.verify_repo_checksums(repo_id, revision=revision, local_dir=folder)
        except ConnectionError:
            raise unknown from error
        differing = {each["path"] for each in found.mismatches} | {*found.extra_paths}
        if differing & files.keys() or stale & {*found.missing_paths}:
            raise
        url = f"{api.endpoint}/{repo_id}/commit/{last.commit_id}"
        return CommitInfo(url, last.title, last.message, last.commit_id)


@contextmanager
def hub_errors(repo_id: str) -> Iterator[None]:
    """Say in one sentence why the Hub refuses `repo_id`, and what to do; see `upload` for the errors."""
    try:
        yield
    except OfflineModeIsEnabled:
        raise
    # the client wraps what happens to a large file in a RuntimeError; xet has ConnectionErrors of its own
    except (HTTPError, ConnectionError, RuntimeError) as error:
        cause = error if isinstance(error, HTTPError) else error.__cause__
        raise _explain(cause, repo_id) from error
    except ValueError as error:
        # the name is invalid, or the Hub refuses the card and says why in several lines
        raise ValueError(f"{repo_id} was not published: {' '.join(str(error).split())}") from error


def _explain(error: BaseException | None, repo_id: str) -> ValueError | OSError:
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else 0
    if status == 401:
        return PermissionError(
            f"the Hub does not know you as somebody who may see {repo_id}; log in with `hf auth login`, or set HF_TOKEN"
        )
    if status in (403, 404):
        return PermissionError(
            f"your token may not write to {repo_id}; choose a name under your own, or a token with the right to write"
        )
    if 400 <= status < 500 and status != 429:
        said = " ".join((error.server_message or "").split())  # type: ignore[union-attr]
        return ValueError(f"the Hub does not take {repo_id} (status {status}: {said}); correct this and push again")
    return ConnectionError(
        f"the connection to the Hub broke before {repo_id} was complete; push again, which sends what has not arrived"
    )


def _has_own_card(api: HfApi, repo_id: str, revision: str | None) -> bool:
    try:
        return not is_draft(api.hf_hub_download(repo_id, CARD, revision=revision))
    except EntryNotFoundError:
        return False
    except ValueError:
        # a card of another encoding is not ours
        return True


def _files_of(folder: Path) -> dict[str, Path]:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is no folder; give one that `save_pretrained` or `sublayers export` made")
    refuse_links_out(folder)
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    if not files:
        raise FileNotFoundError(f"{folder} holds no files; save a model there first")
    return files

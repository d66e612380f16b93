"""`sublayers push`: publish a trained model on the Hugging Face Hub, with the code that it needs."""

from contextlib import suppress
from dataclasses import MISSING, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from huggingface_hub import HfApi
from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

from sublayers.hub.sources import check_model
from sublayers.training.flags import flag, parse_flags

USAGE = "sublayers push FOLDER USER/NAME [--name value ...]"
DESCRIPTION = "Publish a model on the Hugging Face Hub, with its tokenizer, card, licence and code."
EPILOG = "Log in with `hf auth login`, or set HF_TOKEN; a token on a command line stays in the shell's history."


@dataclass
class PushArguments:
    """Flags of `sublayers push`."""

    folder: Path = flag("folder of the model, such as the output_dir of a training command", MISSING, positional=True)
    repository: str = flag("where to publish it; made if there is none", MISSING, positional=True, metavar="USER/NAME")
    private: bool = flag("make a repository that only you can see", False)
    revision: str | None = flag("a branch, made if there is none; default: main")
    commit_message: str = flag("title of the commit", "Upload model")
    overwrite: bool = flag("replace the files of a repository that holds some", False)


def main(argv: list[str]) -> None:
    """Export a folder, upload the result in one commit, and print where it is.

    Raises:
        FileExistsError: the repository holds other files already, and `--overwrite` is not given.
        ValueError: the folder holds none of our models, or the repository is public and `--private` is given; see also
            `export` and `upload`.
    """
    [arguments] = parse_flags(argv, [PushArguments], USAGE, description=DESCRIPTION, epilog=EPILOG)
    check_model(arguments.folder)
    # these imports take seconds, for which --help does not wait
    from sublayers.hub.upload import hub_errors, upload
    from sublayers.training.trainers.export import export

    repository, revision, api = arguments.repository, arguments.revision, HfApi()
    _check_repository(repository, arguments.private)
    # the Hub begins a repository with .gitattributes; a push that broke leaves no more than that
    empty, held = {".gitattributes"}, []
    with hub_errors(repository), suppress(RepositoryNotFoundError, RevisionNotFoundError):
        held = [name for name in api.list_repo_files(repository, revision=revision) if name not in empty]
    with TemporaryDirectory() as folder:
        export(arguments.folder, Path(folder), repository)
        if held and not arguments.overwrite:
            with hub_errors(repository):
                found = api.verify_repo_checksums(repository, revision=revision, local_dir=folder)
            # the same folder may be pushed again when the answer to a push was lost
            if found.mismatches or found.extra_paths or {*found.missing_paths} - empty:
                raise FileExistsError(
                    f"{repository} holds {', '.join(held[:5])}; add --overwrite to replace what is there"
                )
        commit = upload(
            folder,
            repository,
            # without the flag, the owner's own default decides
            private=arguments.private or None,
            revision=revision,
            commit_message=arguments.commit_message,
        )
    print(f"{arguments.folder} is published at {commit.repo_url}")


def _check_repository(name: str, private: bool) -> None:
    from sublayers.hub.upload import hub_errors

    if name.count("/") != 1:
        raise ValueError(f"{name!r} does not say whose the repository is; write USER/NAME")
    public = False
    with hub_errors(name), suppress(RepositoryNotFoundError):
        public = not HfApi().model_info(name).private
    if private and public:
        raise ValueError(f"{name} is public already; make it private in its settings, or leave --private out")

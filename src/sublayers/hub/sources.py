"""What can be said of the name of a model's source before anything heavy is imported."""

import re
from pathlib import Path


def check_model(folder: Path) -> None:
    """Check that a folder may have a model.

    Raises:
        FileNotFoundError: there is none, or it has no configuration.
    """
    if not folder.exists():
        raise FileNotFoundError(f"there is no folder {folder}; give that of a trained model")
    if not (folder / "config.json").exists():
        raise FileNotFoundError(f"{folder} has no config.json; give the folder of a trained model")


def check_source(source: str | Path) -> None:
    """Check that a source is there, or may be a repository on the Hub, NAME or USER/NAME.

    Raises:
        FileNotFoundError: it can only be a folder, and there is none.
    """
    if not Path(source).exists() and not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", str(source)):
        raise FileNotFoundError(f"there is no folder {source}; give another")

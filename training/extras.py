"""What commands need beside the package: the extras of setup.cfg."""

from importlib.metadata import PackageNotFoundError, distribution, requires

from packaging.requirements import Requirement


def require(extra: str) -> None:
    """Check that all packages of an extra are installed, which takes no time; to import them takes seconds.

    Raises:
        ModuleNotFoundError: some are not.
    """
    try:
        needed = [Requirement(each) for each in requires("sublayers") or []]
    except PackageNotFoundError:
        # the package is not installed but runs from its folder, without metadata
        return
    names = [each.name for each in needed if each.marker and each.marker.evaluate({"extra": extra})]
    if missing := [name for name in names if not _is_installed(name)]:
        raise ModuleNotFoundError(
            f"{', '.join(missing)} {'are' if missing[1:] else 'is'} not installed; pip install 'sublayers[{extra}]'"
        )


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True

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
    missing = []
    for each in needed:
        if each.marker and each.marker.evaluate({"extra": extra}):
            try:
                distribution(each.name)
            except PackageNotFoundError:
                missing.append(each.name)
    if missing:
        raise ModuleNotFoundError(
            f"{', '.join(missing)} {'are' if missing[1:] else 'is'} not installed; pip install 'sublayers[{extra}]'"
        )

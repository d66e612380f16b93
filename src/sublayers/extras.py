"""What commands need: the packages of setup.cfg, in the versions that were tested."""

from importlib.metadata import PackageNotFoundError, distribution, requires

from packaging.requirements import Requirement


def require(extra: str = "") -> None:
    """Check that what the package and an extra need is installed, which takes no time; to import it takes seconds.

    Raises:
        ModuleNotFoundError: some packages are not, or in versions that were not tested.
    """
    try:
        needed = [Requirement(each) for each in requires("sublayers") or []]
    except PackageNotFoundError:
        # the package is not installed but runs from its folder, without metadata
        return
    remedy = f"pip install 'sublayers[{extra}]'" if extra else "pip install sublayers"
    missing, untested = [], []
    for each in needed:
        if each.marker is None or each.marker.evaluate({"extra": extra}):
            try:
                version = distribution(each.name).version
            except PackageNotFoundError:
                missing.append(each.name)
            else:
                if not each.specifier.contains(version, prereleases=True):
                    untested.append(f"{each.name} {version} is not {each.specifier}")
    if missing:
        raise ModuleNotFoundError(f"{', '.join(missing)} {'are' if missing[1:] else 'is'} not installed; {remedy}")
    if untested:
        raise ModuleNotFoundError(f"{', '.join(untested)}, which is what was tested; {remedy}")

"""`sublayers recipe`: show recipes: their sources, their settings, and what the papers report."""

import argparse
from pathlib import Path

import yaml

from sublayers.training.flags import RECIPES, nearest


def main(argv: list[str]) -> None:
    """Print some recipes, each before the one that it is based on, or list all.

    Raises:
        ValueError: an unknown recipe.
    """
    parser = argparse.ArgumentParser(prog="sublayers recipe", description=__doc__)
    files = {path.stem: path for path in sorted(RECIPES.rglob("*.yaml"))}
    parser.add_argument("names", nargs="*", metavar="RECIPE", help=f"of {', '.join(files)}")
    names = parser.parse_args(argv).names
    for name in names:
        if name not in files:
            raise ValueError(f"recipe {name!r} is unknown{nearest(name, files)}; choose from {', '.join(files)}")
    if not names:
        print("\n".join(f"{name:<22} sublayers {path.parent.name}" for name, path in files.items()))
    while names:
        text = files[name := names.pop(0)].read_text(encoding="utf-8")
        print(f"# sublayers {files[name].parent.name} {name}\n{text}")
        # a base of another command is a file
        names = [Path(base).stem, *names] if (base := yaml.safe_load(text).get("base")) else names

"""`sublayers recipe`: describe a recipe: its orders, their costs, its settings, and what the paper reports of it."""

import argparse
from pathlib import Path

from tqdm.auto import tqdm

from sublayers.training.flags import RECIPES, nearest
from sublayers.training.folders import refuse_to_overwrite


def main(argv: list[str]) -> None:
    """Print the cards of some recipes, or write those of all into a folder; without either, list all.

    Raises:
        FileExistsError: the folder holds files.
        ValueError: there is no such recipe.
    """
    parser = argparse.ArgumentParser(prog="sublayers recipe", description=__doc__)
    commands = {path.stem: path.parent.name for path in sorted(RECIPES.rglob("*.yaml"))}
    parser.add_argument("names", nargs="*", metavar="RECIPE", help=f"of {', '.join(commands)}")
    parser.add_argument("--output_dir", type=Path, help="a new folder for a .md file of each")
    args = parser.parse_args(argv)
    for name in args.names:
        if name not in commands:
            raise ValueError(f"recipe {name!r} is unknown{nearest(name, commands)}; choose from {', '.join(commands)}")
    if not args.names and args.output_dir is None:
        print("\n".join(f"{name:<22} sublayers {command}" for name, command in commands.items()))
        return
    # this import takes seconds, for which --help does not wait
    from sublayers.training.commands.recipe_card import recipe_card

    if args.output_dir is None:
        print("\n".join(recipe_card(name) for name in args.names))
        return
    refuse_to_overwrite(args.output_dir)
    args.output_dir.mkdir(parents=True, exist_ok=True)
    for name in tqdm(args.names or commands, desc="cards", unit="recipe"):
        (args.output_dir / f"{name}.md").write_text(recipe_card(name), encoding="utf-8")

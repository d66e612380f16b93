"""`sublayers recipe`: describe a recipe: its orders, their costs, its settings, and what the paper reports of it."""

import argparse
from pathlib import Path

from tqdm.auto import tqdm

from sublayers.training.flags import recipes
from sublayers.training.folders import refuse_to_overwrite

# the commands whose recipes train one model
COMMANDS = ("pretrain", "seq2seq")


def main(argv: list[str]) -> None:
    """Print the cards of some recipes, or write those of all into a folder.

    Raises:
        FileExistsError: the folder holds files.
        ValueError: there is no such recipe, or it trains several models.
    """
    parser = argparse.ArgumentParser(prog="sublayers recipe", description=__doc__)
    names = [name for command in COMMANDS for name in recipes(command)]
    parser.add_argument("names", nargs="*", metavar="RECIPE", help=f"of {', '.join(names)}")
    parser.add_argument("--output_dir", type=Path, help="a new folder for a .md file of each")
    args = parser.parse_args(argv)
    # this import takes seconds, for which --help does not wait
    from sublayers.training.commands.recipe_card import recipe_card

    if args.output_dir is None:
        print("\n".join(recipe_card(name) for name in args.names) if args.names else "\n".join(names))
        return
    refuse_to_overwrite(args.output_dir)
    args.output_dir.mkdir(parents=True, exist_ok=True)
    for name in tqdm(args.names or names, desc="cards", unit="recipe"):
        (args.output_dir / f"{name}.md").write_text(recipe_card(name), encoding="utf-8")

"""Recipes as files, and the cards of families."""

import re
from pathlib import Path

import pytest
from hub_metadata import front_matter, metadata_errors

from sublayers import AUTO_CLASSES
from sublayers.training.commands import recipe
from sublayers.training.flags import RECIPES, expand_settings_file, recipes
from sublayers.training.trainers.arguments import FromScratchArguments

ROOT = Path(__file__).resolve().parents[3]
FAMILY_CARDS = sorted((ROOT / "model_cards").glob("*.md"))


@pytest.mark.parametrize("name", [name for command in ("pretrain", "seq2seq", "distill") for name in recipes(command)])
def test_a_run_of_a_recipe_that_is_killed_loses_a_fifth_at_most(name):
    (command,) = [command for command in ("pretrain", "seq2seq", "distill") if name in recipes(command)]
    flags = expand_settings_file([name], command)
    settings = dict(flag.removeprefix("--").split("=", 1) for flag in flags if "=" in flag)
    assert settings.get("save_strategy", "steps") == "steps"
    steps = float(settings.get("save_steps", FromScratchArguments.save_steps))
    assert (steps if steps < 1 else steps / int(settings["max_steps"])) <= 0.2


def test_each_family_has_a_card():
    assert [path.stem for path in FAMILY_CARDS] == sorted(config.model_type for config in AUTO_CLASSES)


def headings(path):
    """The anchors that GitHub makes."""
    found = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("path", FAMILY_CARDS, ids=lambda path: path.stem)
def test_metadata_of_a_family_are_the_hubs_and_links_lead_somewhere(path):
    text = path.read_text(encoding="utf-8")
    assert metadata_errors(text) == ([], [])
    data = front_matter(text)
    assert (data["library_name"], data["license"]) == ("transformers", "apache-2.0")
    assert "[More Information Needed]" not in text
    assert {config.model_type for config in AUTO_CLASSES} & {*data["tags"]} == {path.stem}
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert links
    for link in links:
        if not link.startswith("https://"):
            file, _, anchor = link.partition("#")
            # a link within the page names no file
            target = path.parent / (file or path.name)
            assert target.exists(), link
            assert not anchor or anchor in headings(target), link


def test_a_name_stands_for_one_recipe():
    names = [path.stem for path in RECIPES.rglob("*.yaml")]
    assert len({*names}) == len(names)


def test_recipes_are_listed_or_printed_with_what_they_are_based_on(capsys):
    recipe.main([])
    listed = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert listed == {path.stem: f"sublayers {path.parent.name}" for path in RECIPES.rglob("*.yaml")}
    recipe.main(["iot_n2", "modern", "par_search_wt103"])
    files = {
        name: (RECIPES / name).with_suffix(".yaml").read_text(encoding="utf-8")
        for name in (
            *("seq2seq/iot_n2", "seq2seq/iot_n4", "pretrain/modern"),
            *("search/par_search_wt103", "pretrain/par_wt103_base"),
        )
    }
    assert capsys.readouterr().out == "".join(
        f"# sublayers {name.replace('/', ' ')}\n{text}\n" for name, text in files.items()
    )

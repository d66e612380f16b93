import re
import shlex
from functools import cache
from pathlib import Path

import pytest
import yaml
from hub_metadata import front_matter, metadata_errors

from sublayers import AUTO_CLASSES
from sublayers.training.cli import COMMANDS
from sublayers.training.commands import recipe, recipe_card as cards
from sublayers.training.commands.pretrain import parse as parse_pretrain
from sublayers.training.commands.recipe_card import read_card, recipe_card
from sublayers.training.commands.seq2seq import parse as parse_seq2seq
from sublayers.training.flags import RECIPES as RECIPES_FOLDER, expand_settings_file, read_settings, recipes
from sublayers.training.trainers.arguments import FromScratchArguments

ROOT = Path(__file__).resolve().parents[3]
# that of a study trains several models, which the card of their family describes
RECIPES = [name for command in ("pretrain", "seq2seq") for name in recipes(command)]
FAMILY_CARDS = sorted((ROOT / "model_cards").glob("*.md"))
TRAINED = {"multi30k"}


card = cache(recipe_card)


def rows(name, section):
    """Cells of the table under a heading, by that of the first column."""
    text = card(name).split(f"\n## {section}\n")[1].split("\n## ")[0]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line[:1] == "|"]
    return {first: rest for first, *rest in cells}


@pytest.mark.parametrize("name", [*RECIPES, *recipes("distill")])
def test_a_run_of_a_recipe_that_is_killed_loses_a_fifth_at_most(name):
    (command,) = [command for command in ("pretrain", "seq2seq", "distill") if name in recipes(command)]
    flags = expand_settings_file([name], command)
    settings = dict(flag.removeprefix("--").split("=", 1) for flag in flags if "=" in flag)
    assert settings.get("save_strategy", "steps") == "steps"
    steps = float(settings.get("save_steps", FromScratchArguments.save_steps))
    assert (steps if steps < 1 else steps / int(settings["max_steps"])) <= 0.2


def test_each_family_has_a_card():
    assert [path.stem for path in FAMILY_CARDS] == sorted(config.model_type for config in AUTO_CLASSES)


def check_metadata(text):
    assert metadata_errors(text) == ([], [])
    data = front_matter(text)
    assert (data["library_name"], data["license"]) == ("transformers", "apache-2.0")
    assert "[More Information Needed]" not in text
    return {config.model_type for config in AUTO_CLASSES} & {*data["tags"]}


def test_the_tag_of_the_task_is_the_recipes_as_far_as_the_hub_has_it():
    tags = {name: front_matter(card(name)).get("pipeline_tag") for name in RECIPES}
    assert tags["iot_summarization"] == "summarization"
    assert tags["iot_code"] is None
    assert {tags[name] for name in ("macaron_bert", "nvlamb_phase1", "nvlamb_phase2")} == {"fill-mask"}
    others = [name for name in RECIPES if name.startswith(("iot_n", "iot_w", "iot_r", "sandwich_wmt", "multi"))]
    assert {tags[name] for name in ("par_wt103_base", "xl_enwik8", "sandwich_text8")} == {"text-generation"}
    assert {tags[name] for name in [*others, "macaron_small", "macaron_base", "macaron_big"]} == {"translation"}
    assert front_matter(card("macaron_small"))["language"] == ["de", "en"]
    assert front_matter(card("macaron_base"))["language"] == ["en", "de"]


def headings(path):
    """The anchors that GitHub makes."""
    found = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("path", FAMILY_CARDS, ids=lambda path: path.stem)
def test_metadata_of_a_family_are_the_hubs_and_links_lead_somewhere(path):
    assert check_metadata(path.read_text(encoding="utf-8")) == {path.stem}
    links = re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8"))
    assert links
    for link in links:
        if not link.startswith("https://"):
            file, _, anchor = link.partition("#")
            # a link within the page names no file
            target = path.parent / (file or path.name)
            assert target.exists(), link
            assert not anchor or anchor in headings(target), link


@pytest.mark.parametrize("name", RECIPES)
def test_metadata_are_the_hubs_and_the_command_is_understood(name):
    assert check_metadata(card(name))
    # a setting that the card's maker did not find
    assert "None" not in card(name)
    [line] = re.findall(r"```bash\n(.*)\n```", card(name))
    program, command, *argv = shlex.split(line)
    assert (program, argv[0]) == ("sublayers", name)
    assert command in COMMANDS
    if command == "seq2seq":
        _, _, data, _ = parse_seq2seq(argv)
        assert all((data.train_file, data.validation_file, data.test_file, data.source, data.target))
    else:
        _, _, corpus, args = parse_pretrain(argv)
        assert (corpus.train_file, corpus.validation_file) == ("train.jsonl", "validation.jsonl")
        assert args.output_dir == f"runs/{name}"


def transformer(vocabulary, width, inner, encoder, decoder, norms):
    """Parameters of an encoder-decoder with one embedding, from the numbers of its (attention, feed-forward)."""
    attention, feed_forward = 4 * (width * width + width), 2 * width * inner + width + inner
    attentions, feed_forwards = (sum(pair) for pair in zip(encoder, decoder, strict=True))
    sublayers = attentions * (attention + 2 * width) + feed_forwards * (feed_forward + 2 * width)
    return vocabulary * width + sublayers + norms * 2 * width


def test_parameters_are_those_of_the_formula():
    counted = {
        # six layers with two attentions in the decoder; a row for each of four orders
        "iot_n4": transformer(10_152, 512, 1024, (6, 6), (12, 6), 0) + 4 * 512,
        # twice as many feed-forward sublayers, and final norms
        "macaron_big": transformer(32_768, 1024, 2048, (6, 12), (12, 12), 2),
        "multi30k": transformer(5000, 192, 768, (3, 3), (6, 3), 2),
        "sandwich_wmt": transformer(32_768, 1024, 4096, (6, 6), (12, 6), 0),
        # a table for each side, of which the decoder's also scores
        "iot_code": transformer(50_000, 256, 1024, (3, 3), (6, 3), 0) + 4 * 256 + 50_000 * 256,
    }
    for name, parameters in counted.items():
        [(written, *_)] = [cells for model, cells in rows(name, "Sizes and costs").items() if model.endswith("seq2seq")]
        assert written == f"{parameters:,}", name


def test_both_phases_of_a_bert_have_one_size_and_positions_for_the_longer():
    width, inner = 768, 3072
    embeddings = (30_522 + 512 + 2) * width + 2 * width
    attention, feed_forward = 4 * (width * width + width), 2 * width * inner + width + inner
    pooler, next_sentence, transform = width * width + width, 2 * width + 2, width * width + 3 * width + 30_522
    total = embeddings + 5 * attention + 19 * feed_forward + 24 * 2 * width + pooler + next_sentence + transform
    for name in ("nvlamb_phase1", "nvlamb_phase2"):
        cells = rows(name, "Sizes and costs")["par_bert"]
        assert cells == [f"{total:,}", "768", "3072", "12", "30,522", "512"]
    # that of the released model
    cells = rows("macaron_bert", "Sizes and costs")["macaron_bert"]
    assert cells == ["110,787,073", "768", "1536", "12", "32,768", "384"]


def test_settings_are_those_that_train():
    n4, big, phase1 = (rows(name, "Training") for name in ("iot_n4", "macaron_big", "nvlamb_phase1"))
    assert n4["updates"] == ["100,000"]
    assert n4["batch"] == ["pairs of at most 4,000 tokens on the larger side, padding included"]
    assert n4["optimizer"] == ["AdamW, betas 0.9 and 0.98, epsilon 1e-09, weight decay 0.0001"]
    assert n4["kept"] == ["the checkpoint with the least validation loss"]
    assert big["batch"] == ["pairs of at most 262,144 tokens on the larger side, padding included"]
    assert big["learning rate"] == ["0.003, inverse sqrt"]
    assert big["gradient norm"] == ["not clipped"]
    assert big["dropout"] == ["0.3, of attention weights 0.1, inside feed-forward 0.1"]
    assert big["writing"] == ["4 beams, length penalty 0.6"]
    assert phase1["batch"] == ["65,536 pairs of segments, 128 tokens each at most"]
    assert phase1["optimizer"][0].startswith("LAMB, betas 0.9 and 0.999")
    assert phase1["learning rate"] == ["0.006, polynomial (power 0.5, lr_end 0)"]
    # 0.2843 of 7,038, rounded up
    assert phase1["warm-up"] == ["2,001 updates"]
    assert rows("multi30k", "Training")["kept"] == ["the mean of the last 5 checkpoints"]


def test_orders_are_drawn_sublayer_by_sublayer():
    text = card("sandwich_wmt")
    assert "encoder `s3(sf)3f3`, 12 sublayers\n\n🟩🟩🟩🟩🟪🟩🟪🟩🟪🟪🟪🟪\n" in text
    assert text.count("🟩🟦🟪" * 6) == 1
    assert [line for line in card("iot_n2").splitlines() if line.startswith("decoder, order")] == [
        "decoder, order 0 `(csf)6`, 18 sublayers",
        "decoder, order 1 `(fcs)6`, 18 sublayers",
    ]


def test_whose_figures_are_whose_is_said():
    for name in RECIPES:
        results = card(name).split("\n## Results\n")[1].split("\n## ")[0]
        assert ("We have measured nothing with this recipe" in results) == (name not in TRAINED)
        assert ("We have trained with this recipe" in results) == (name in TRAINED)
        assert ("**The paper's figures, not ours:**" in results) == ("| where |" in results)
        if name in TRAINED:
            assert "| where |" not in results


def test_the_header_of_the_recipe_is_its_prose():
    said = "\nPAR BERT base, phase 1 of 2: NVIDIA's BERT recipe, as Mandava et al. (2020) use it in section 3.2. Wiki"
    assert said in card("nvlamb_phase1")
    # a remark on one setting is none on the recipe
    assert "phase 2 goes on with longer blocks" not in card("nvlamb_phase1")


def test_an_unknown_recipe_is_refused_with_those_of_all_commands():
    with pytest.raises(
        ValueError, match=r"recipe 'macaron' is unknown, did you mean .*; choose from short_texts, .*modern"
    ):
        recipe.main(["macaron"])


@pytest.mark.parametrize("command", ["distill", "study"])
def test_a_recipe_without_a_model_of_its_own_has_its_purpose_and_its_settings(command):
    for name in recipes(command):
        text = recipe_card(name)
        assert text.startswith(f"# Recipe `{name}`\n\n`sublayers {command}")
        [settings] = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
        assert yaml.safe_load(settings) == read_settings(name, command)


def test_a_name_stands_for_one_recipe():
    names = [path.stem for path in RECIPES_FOLDER.rglob("*.yaml")]
    assert len({*names}) == len(names)


def test_all_that_recipes_tell_their_cards_is_read():
    for path in RECIPES_FOLDER.rglob("*.yaml"):
        told = read_card(path)
        assert told.keys() <= {"columns", "figures", "measured", "is_ours"}
        for figure in told.get("figures", []):
            assert figure.keys() == {"data", "metric", "score", "baseline", "where"}


def test_cards_are_printed_or_written_into_a_new_folder(tmp_path, monkeypatch, capsys):
    recipe.main(["iot_n2"])
    assert capsys.readouterr().out.rstrip() == card("iot_n2").rstrip()
    recipe.main([])
    listed = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert listed == {path.stem: f"sublayers {path.parent.name}" for path in RECIPES_FOLDER.rglob("*.yaml")}
    monkeypatch.setattr(cards, "recipe_card", lambda name: f"card of {name}")
    recipe.main(["--output_dir", str(tmp_path / "cards")])
    assert sorted(path.stem for path in (tmp_path / "cards").iterdir()) == sorted(listed)
    with pytest.raises(FileExistsError, match="is not empty; choose another folder"):
        recipe.main(["--output_dir", str(tmp_path / "cards")])

"""Cards say what a folder knows, and nothing that somebody smuggled in."""

import json
import math
import re
from statistics import mean, stdev

import pytest
import yaml
from families import HEADS, small
from hub_metadata import metadata_errors
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt

import sublayers.pipelines  # noqa: F401
from sublayers import (
    AUTO_CLASSES,
    IOTSeq2SeqConfig,
    IOTSeq2SeqForConditionalGeneration,
    PARBertConfig,
    PARBertForSequenceClassification,
)
from sublayers.configuration.sublayer_cost import flops
from sublayers.hub.model_card import GENERATED, stacks, write_card
from sublayers.training.data.tokenizers import train_tokenizer

SCORE = {"dataset": "GLUE sst2", "id": "nyu-mll/glue", "config": "sst2", "split": "validation", "metric": "accuracy"}
RUN = {
    "command": "sublayers glue --task_name sst2 --seeds 1 2 3",
    "date": "2026-02-03",
    "started_from": "runs/bert",
    "data": [{"role": "data", "name": "GLUE sst2", "id": "nyu-mll/glue", "config": "sst2"}],
    "seeds": [1, 2, 3],
    "machine": {"processor": "abacus", "threads": 2},
    "results": [SCORE | {"value": value, "seed": seed} for seed, value in {1: 0.7, 2: 0.8, 3: 0.75}.items()],
}


@pytest.fixture
def classifier(tmp_path):
    folder = tmp_path / "mine"
    PARBertForSequenceClassification(small(PARBertConfig)).save_pretrained(folder)
    return folder


def card_of(folder, run=None, **arguments):
    if run:
        (folder / "run.json").write_text(json.dumps(run))
    write_card(folder, **arguments)
    return (folder / "README.md").read_text()


def assert_sound(text):
    assert metadata_errors(text) == ([], [])
    assert "More Information Needed" not in text
    assert not re.search(r"\{[{%]|[:|=] None|\bnan\b", text.split("```bibtex")[0])
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({row.count("|") for row in table.splitlines()}) == 1, table


@pytest.mark.parametrize(("config_class", "auto_class"), HEADS, ids=lambda part: part.__name__)
@pytest.mark.representatives(10)
def test_the_card_of_every_head_is_sound_and_its_code_runs(tmp_path, monkeypatch, config_class, auto_class):
    tokenizer = train_tokenizer(["Ada wrote the first program."], "wordpiece", 60)
    model = AUTO_CLASSES[config_class][auto_class](small(config_class))
    tokenizer.save_pretrained(tmp_path / "mine")
    model.save_pretrained(tmp_path / "mine", self_contained=True)
    text = (tmp_path / "mine" / "README.md").read_text()
    assert_sound(text)
    assert f"{model.num_parameters():,} parameters" in text
    assert "How these weights were made is not recorded" in text
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 2
    monkeypatch.chdir(tmp_path)
    for block in blocks:
        names = {}
        exec(compile(block, "README.md", "exec"), names)
        assert {"model", "run"} & names.keys()


def test_every_order_is_drawn_letter_by_letter(tmp_path):
    config = small(IOTSeq2SeqConfig)
    IOTSeq2SeqForConditionalGeneration(config).save_pretrained(tmp_path)
    drawings = re.findall("^[🟩🟦🟪]+$", card_of(tmp_path), re.MULTILINE)
    letters = ["".join({"🟩": "s", "🟦": "c", "🟪": "f"}[square] for square in drawing) for drawing in drawings]
    assert letters == [*config.encoder_orders, *config.decoder_orders]


def test_scores_are_means_over_seeds_and_reach_the_model_index(classifier):
    text = card_of(classifier, RUN)
    assert_sound(text)
    scores = [result["value"] for result in RUN["results"]]
    assert f"| {mean(scores):.4g} ± {stdev(scores):.2g} | 1, 2, 3 |" in text
    [found] = ModelCard.load(classifier / "README.md").data.eval_results
    assert found.metric_value == pytest.approx(mean(scores))
    assert (found.task_type, found.dataset_type) == ("text-classification", "nyu-mll/glue")
    assert (found.dataset_config, found.metric_type) == ("sst2", "accuracy")
    assert ModelCard.load(classifier / "README.md").data.datasets == ["nyu-mll/glue"]
    for told in (RUN["command"], RUN["date"], "runs/bert", "abacus", "GLUE sst2"):
        assert told in text


def leaderboard_entries(folder):
    """What the Hub reads in the folder that it reads scores from."""
    return [entry for file in folder.glob(".eval_results/*.yaml") for entry in yaml.safe_load(file.read_text())]


def test_scores_on_data_of_the_hub_are_told_as_leaderboards_read_them(classifier):
    (classifier / ".eval_results").mkdir()
    (classifier / ".eval_results" / "theirs.yaml").write_text("[]")
    local = {"dataset": "dev.jsonl", "split": "validation", "metric": "accuracy", "value": 0.5, "seed": 1}
    elsewhere = {**local, "id": "ann/texts", "metric": "f1: macro"}
    card_of(classifier, RUN | {"results": [*RUN["results"], local, elsewhere]})
    # docs/hub/eval-results.md of huggingface/hub-docs
    first, second = leaderboard_entries(classifier)
    assert first.pop("value") == pytest.approx(0.75)
    assert first == {
        "dataset": {"id": "nyu-mll/glue", "task_id": "sst2"},
        "date": "2026-02-03",
        "notes": "accuracy on validation, mean over seeds 1, 2, 3",
    }
    assert second["dataset"] == {"id": "ann/texts", "task_id": "default"}
    assert second["notes"] == "f1: macro on validation, mean over seeds 1"
    # the next run was not on the Hub's data, though the card is somebody's own by now
    (classifier / "README.md").write_text("my own words")
    card_of(classifier, RUN | {"results": [local]})
    assert [file.name for file in classifier.glob(".eval_results/*")] == ["theirs.yaml"]


def body(text):
    """A card without its metadata."""
    return text.split("\n---\n", 1)[1]


def test_a_card_of_ones_own_is_kept(classifier):
    own = card_of(classifier, RUN).replace(GENERATED, "").replace("## Limits", "## What I found")
    (classifier / "README.md").write_text(own)
    assert card_of(classifier, RUN | {"command": "another"}) == own


@pytest.mark.parametrize("gap", ["[More Information Needed]", "according to the information the Trainer had access to"])
def test_a_draft_of_somebody_elses_program_makes_room(classifier, gap):
    (classifier / "README.md").write_text(f"# A model\n{gap}")
    assert "## Sizes and costs" in card_of(classifier)


def test_a_generated_card_follows_its_folder(classifier):
    assert "ann/mine" not in card_of(classifier, RUN)
    assert 'from_pretrained("ann/mine"' in card_of(classifier, RUN, model_id="ann/mine")


PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
MARKDOWN = [
    "a\n---\nlicense: evil",
    "# heading",
    "x\n===\n",
    "- item",
    "1. item",
    "> quote",
    "__class__ _em_ *em* **strong** ~~gone~~",
    "`code` ``` ~~~",
    "![image](https://evil.example/x.png)",
    "[link](https://evil.example) [link]: https://evil.example",
    "<https://evil.example> <img src=x onerror=alert(1)> <!-- comment",
    "a | b \\| c \\",
    "&lt;b&gt; &#42;",
    "{{ config }} {% raw %}",
]


def structure(text):
    """What a card is made of for a reader of Markdown, and all of its texts."""
    tokens = [inner for token in PARSER.parse(body(text)) for inner in (token, *(token.children or []))]
    return [(t.type, t.tag, t.attrs) for t in tokens], [t.content for t in tokens if t.type in ("text", "fence")]


def told(value):
    """A record with a value wherever it can have one; one that metadata refuse is not among them."""
    machine = {"processor": value, value: "abacus"}
    results = [{**RUN["results"][0], "dataset": value, "split": value, "metric": value}]
    data = [{"role": value, "name": value}]
    return RUN | {"started_from": value, "machine": machine, "results": results, "data": data, "remarks": [value]}


@pytest.mark.parametrize("value", MARKDOWN)
def test_markdown_in_what_a_run_was_told_is_only_text(classifier, value):
    expected, _ = structure(card_of(classifier, told("nothing"), model_id="nothing"))
    text = card_of(classifier, told(value), model_id=value)
    found, texts = structure(text)
    assert found == expected
    assert "".join(texts).count(" ".join(value.split())) >= 9
    # some renderers make links of these by themselves
    assert "://evil" not in re.sub("```.*?```", "", body(text), flags=re.DOTALL)


EVIL = "x\n---\nlicense: mit\n---\n```\n| a | b <script>alert(1)</script> `"


# in a command, a fence is all that has a meaning
@pytest.mark.parametrize(
    "evil", [told(EVIL) | {"results": [SCORE | {"dataset": EVIL, "value": 1, "seed": 1}]}, {"command": EVIL}]
)
def test_names_cannot_bring_metadata_or_markup_of_their_own(classifier, evil):
    text = card_of(classifier, RUN | evil, model_id=EVIL)
    assert_sound(text)
    assert ModelCard.load(classifier / "README.md").data.license == "apache-2.0"
    assert "<script" not in re.sub("```.*?```", "", body(text), flags=re.DOTALL)
    assert text.count("\n---\n") == 1
    assert body(text).count("\n```") % 2 == 0


def test_words_with_underscores_stay_readable(classifier):
    assert "| exact_match |" in card_of(classifier, told("exact_match"))


BAD_RUNS = {
    "not json": b"{",
    "nothing": b"",
    "not text": b"\xff\xfe\x00",
    "deep": b"[" * 100_000,
    "a list": b"[1]",
    "null": b"null",
    "a number": b"3",
    "a word": b'"data"',
    **{
        f"{name} {value!r}": json.dumps({name: value}).encode()
        for name in ("command", "started_from", "data", "seeds", "machine", "results", "remarks", "base_model", "task")
        for value in (1.5, True, {"a": {"b": 1}}, [[1]], [None], ["x", 3])
    },
    "a score without a seed": json.dumps({"results": [{**RUN["results"][0], "seed": None}]}).encode(),
    "a score that is a text": json.dumps({"results": [{**RUN["results"][0], "value": "0.5"}]}).encode(),
    "a score beyond floats": json.dumps({"results": [{**RUN["results"][0], "value": 10**400}]}).encode(),
    "a score that is no number": json.dumps({"results": [{**RUN["results"][0], "value": math.nan}]}).encode(),
    "a part without a name": json.dumps({"data": [{"role": "data"}]}).encode(),
}


@pytest.mark.parametrize("content", BAD_RUNS.values(), ids=BAD_RUNS)
def test_a_record_that_is_none_is_one_sentence(classifier, content):
    (classifier / "run.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"run\.json is no record of a run") as error:
        write_card(classifier)
    assert "\n" not in str(error.value)
    assert not (classifier / "README.md").exists()


@pytest.mark.parametrize("content", [{}, {"unknown": [1]}, {"command": "\ud800\0\x1b[31m"}, {"seeds": []}])
def test_a_record_may_say_little(classifier, content):
    assert_sound(card_of(classifier, content))


def test_a_card_in_another_encoding_is_one_sentence(classifier):
    (classifier / "README.md").write_bytes("Größe".encode("latin-1"))
    with pytest.raises(ValueError, match=r"README\.md is not in UTF-8; save it in that encoding, or take it away"):
        write_card(classifier)


def test_the_costs_of_one_position_are_those_of_the_mean_where_the_tail_reads_it():
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2}
    for tail_query in ("first", "mean"):
        longer = {"max_position_embeddings": 1024, "tail_query": tail_query}
        [stack] = stacks(PARBertConfig(sublayer_order="(sf)2", **longer, **sizes))
        takes_mean = tail_query == "mean"
        one = [flops("sfsf", 16, 24, length, 1, num_attention_heads=2, takes_mean=takes_mean) for length in (128, 512)]
        assert [1e9 * costs[-1] for costs in stack["costs"]] == pytest.approx(one)

"""What each command leaves is a folder that opens, as its card says, for whoever has never heard of this package."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hub_metadata import metadata_errors
from huggingface_hub import ModelCard
from launched import python
from sentence_transformers import CrossEncoder, SentenceTransformer
from tiny_runs import RUN, make_commands
from tiny_teachers import TEXTS, make_sentence_encoder, save_teacher, write_texts
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, BertForMaskedLM, pipeline

import sublayers.pipelines  # noqa: F401
from sublayers.training import cli
from sublayers.training.trainers.export import export

pytestmark = pytest.mark.slow

PAIRS = [*zip(TEXTS, TEXTS[::-1], strict=True)]
# the texts in the card of a SentenceTransformer or CrossEncoder
SENTENCES = ["Ada wrote the first program.", "Who wrote it?"]
RANKED = [("Who wrote it?", "Ada wrote the first program."), ("Who wrote it?", "It is raining.")]
# what a stranger has after reading each card
EXPECTED = {
    "pretrain": ["SandwichLMForCausalLM", "TextGenerationPipeline"],
    "mlm": ["PARBertForMaskedLM", "FillMaskPipeline"],
    "nsp": ["PARBertForPreTraining", "FillMaskPipeline"],
    "seq2seq": ["MacaronSeq2SeqForConditionalGeneration", "TranslationPipeline"],
    "squad": ["PARBertForQuestionAnswering", "QuestionAnsweringPipeline"],
    "glue/sst2": ["PARBertForSequenceClassification", "TextClassificationPipeline"],
    "convert": ["PARBertForMaskedLM", "FillMaskPipeline"],
    "words": ["PARBertForMaskedLM", "FillMaskPipeline"],
    "logits": ["PARBertForSequenceClassification", "TextClassificationPipeline"],
    "relations": ["PARBertModel", "FeatureExtractionPipeline"],
}
SENTENCE_ENCODERS = {
    "mean": ["PARBertModel", "SentenceTransformer"],
    "cls": ["PARBertModel", "SentenceTransformer"],
    "untrained": ["PARBertModel", "SentenceTransformer"],
    "states": ["PARBertModel", "SentenceTransformer"],
    "reranker": ["PARBertForSequenceClassification", "CrossEncoder"],
    "exported": ["PARBertModel", "SentenceTransformer"],
    "converted": ["PARBertModel", "SentenceTransformer"],
}
EXPECTED |= SENTENCE_ENCODERS


def distillations(folder):
    """The words of `sublayers distill` for each kind of student, by the student's name."""
    save_teacher(folder / "teachers" / "words", model_class=BertForMaskedLM)
    save_teacher(folder / "teachers" / "logits", labels=2)
    save_teacher(folder / "teachers" / "body")
    students = {"words": ["words"], "logits": ["logits"], "body": ["relations", "--relation_heads=2"]}
    commands = {flags[0]: (teacher, ["--objective", *flags]) for teacher, flags in students.items()}
    for mode in ("mean", "cls"):
        save_teacher(folder / "teachers" / mode)
        make_sentence_encoder(folder / "teachers" / mode, mode)
        commands[mode] = (mode, [])
    commands["untrained"] = ("mean", ["--do_eval"])
    commands["states"] = ("mean", ["--objective=states"])
    save_teacher(folder / "one_label", labels=1)
    reranker = CrossEncoder(str(folder / "one_label"), activation_fn=torch.nn.Tanh(), device="cpu")
    reranker.save(str(folder / "teachers" / "reranker"))
    commands["reranker"] = ("reranker", ["--objective=logits"])
    texts = write_texts(folder / "texts.txt", map("\t".join, PAIRS))
    flags = [f"--train_file={texts}", "--sublayer_order=sfsf", "--max_length=16", "--validation_split_percentage=20"]
    return {
        name: ["distill", str(folder / "teachers" / teacher), *own, *flags, *RUN]
        for name, (teacher, own) in commands.items()
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folders of teachers and of what commands leave."""
    place, out = (tmp_path_factory.mktemp(name) for name in ("place", "out"))
    commands = make_commands(place) | distillations(place)
    mlm = {"--tokenizer_model": "--objective", "byte": "mlm"}
    commands["mlm"] = [mlm.get(word, word) for word in commands["pretrain"]]
    commands["nsp"] = [f"{word}+nsp" if word == "mlm" else word for word in commands["mlm"]]
    for name, words in commands.items():
        cli.run([*with_settings_file(words, place / "settings.yaml"), "--output_dir", str(out / name)])
    export(out / "cls", out / "exported")
    for teacher, name in (("words", "convert"), ("cls", "converted")):
        cli.run(["convert", str(place / "teachers" / teacher), str(out / name)])
    return place, out


@pytest.fixture(scope="module")
def opened(made, tmp_path_factory):
    """What a stranger found in what commands leave."""
    found = read_cards(tmp_path_factory.mktemp("home"), [made[1] / name for name in EXPECTED])
    return dict(zip(EXPECTED, found, strict=True))


def with_settings_file(words, file):
    """Have the learning rate come from a settings file, after a teacher if there is one."""
    place, first = words.index("--learning_rate"), 2 if words[0] == "distill" else 1
    file.write_text(f"learning_rate: {words[place + 1]}\n")
    return [*words[:first], str(file), *words[first:place], *words[place + 2 :]]


def read_cards(home, folders):
    """Have the cards of folders read by tests/hub/reader_of_cards.py, with an empty cache."""
    printed = python(Path(__file__).with_name("reader_of_cards.py"), *folders, home=home)
    return json.loads(printed.splitlines()[-1])


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.full
def test_a_stranger_opens_what_a_command_leaves_as_its_card_says(made, opened, name):
    _, out = made
    assert opened[name] == EXPECTED[name]
    text = (out / name / "README.md").read_text()
    assert metadata_errors(text) == ([], [])
    assert not any((out / name).glob("checkpoint-*/*.py"))


@pytest.mark.parametrize("name", EXPECTED)
def test_nothing_that_is_published_tells_where_it_was_made(made, name):
    place, out = made
    told = [file for file in (out / name).rglob("*") if file.suffix in (".json", ".md", ".yaml")]
    # checkpoints and metrics are not published
    told = [file for file in told if "checkpoint" not in str(file) and file.name != "trainer_state.json"]
    assert {"README.md", "run.json", "config.json", "tokenizer_config.json"} <= {file.name for file in told}
    for file in told:
        assert str(place.parent) not in file.read_text(), file
    if name not in ("convert", "untrained", "exported", "converted"):
        run = json.loads((out / name / "run.json").read_text())
        # neither a rate of a settings file nor a default is lost
        assert run["arguments"]["learning_rate"] == run["settings"]["learning rate"] == 0.01
        assert run["arguments"]["adam_beta1"] == 0.9
        card = (out / name / "README.md").read_text()
        assert {"| learning rate | 0.01 |", "| save_steps | 2 |"} <= {*card.splitlines()}
        assert "0.01" not in run["command"]


LONG = "a line of a tiny corpus " * 200
# how a pipeline is told to cut a text, and how many tokens the model of each folder reads
CUT = {"truncation": True}
LIMITS = {
    "mlm": ("fill-mask", {"tokenizer_kwargs": CUT}, 16),
    "seq2seq": ("translation", CUT, 24),
    "squad": ("question-answering", {}, 32),
    "glue/sst2": ("text-classification", CUT, 32),
    "logits": ("text-classification", CUT, 32),
    "convert": ("fill-mask", {"tokenizer_kwargs": CUT}, 32),
}


@pytest.mark.usefixtures("silence")
@pytest.mark.parametrize("name", LIMITS)
def test_long_texts_are_cut_when_told_without_a_warning(made, name):
    task, how, limit = LIMITS[name]
    folder = str(made[1] / name)
    assert len(AutoTokenizer.from_pretrained(folder)(LONG, **CUT).input_ids) == limit
    run = pipeline(task, folder, device="cpu")
    text = f"[MASK] {LONG}" if task == "fill-mask" else LONG
    assert run(question="what?", context=text) if name == "squad" else run(text, **how)


def test_a_long_prompt_is_cut_so_that_there_is_room_for_new_tokens(made):
    folder = str(made[1] / "pretrain")
    options = {"handle_long_generation": "hole", "return_tensors": True}
    [answer] = pipeline("text-generation", folder, device="cpu")(LONG, **options, max_new_tokens=3, min_new_tokens=3)
    assert len(answer["generated_token_ids"]) == 16


@pytest.mark.usefixtures("silence")
def test_a_length_that_is_asked_for_replaces_that_of_the_folder_without_a_warning(made):
    folder = str(made[1] / "seq2seq")
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert (model.generation_config.max_new_tokens, model.generation_config.max_length) == (24, None)
    ids = tokenizer("line 7", return_tensors="pt")
    # that many new tokens, and the one that starts a text
    options = {"min_new_tokens": 5, "num_beams": 1}
    assert model.generate(**ids, **options, max_new_tokens=5).shape[1] == 6
    assert model.generate(**ids, min_new_tokens=24, num_beams=1).shape[1] == 25
    translate = pipeline("translation", folder, device="cpu", return_tensors=True)
    for length, number in (({"max_new_tokens": 4}, 5), ({"max_length": 4}, 4)):
        [answer] = translate("line 7", **length, min_new_tokens=3, num_beams=1)
        assert len(answer["translation_token_ids"]) <= number


@pytest.mark.parametrize("name", SENTENCE_ENCODERS)
@pytest.mark.usefixtures("opened")
@pytest.mark.full
def test_a_stranger_gets_the_numbers_that_we_get(made, name):
    place, out = made
    data = ModelCard.load(out / name / "README.md").data
    assert data.library_name == "sentence-transformers"
    if name == "reranker":
        ours = CrossEncoder(str(out / name), device="cpu")
        assert isinstance(ours.activation_fn, torch.nn.Tanh)
        np.testing.assert_allclose(np.load(out / name / "scores.npy"), ours.predict(RANKED), atol=1e-6)
        assert data.pipeline_tag == "text-ranking"
        return
    ours = SentenceTransformer(str(out / name), device="cpu")
    embeddings = np.load(out / name / "embeddings.npy")
    np.testing.assert_allclose(embeddings, ours.encode(SENTENCES), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1, atol=1e-6)
    assert data.pipeline_tag == "sentence-similarity"
    if name == "converted":
        teacher = SentenceTransformer(str(place / "teachers" / "cls"), device="cpu")
        np.testing.assert_allclose(embeddings, teacher.encode(SENTENCES), atol=1e-5)

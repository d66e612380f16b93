import pytest
import torch
from sentence_transformers import SentenceTransformer
from tiny_teachers import TEXTS, make_sentence_encoder, save_teacher, write_texts
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from sublayers.training.commands.prune import main as prune
from sublayers.training.distill.subsets import take_subset
from sublayers.training.log import Log
from sublayers.training.prune.opening import open_model

FAST = ["--texts=24", "--max_length=16", "--whole_rows=true"]


@pytest.fixture
def classifier(tmp_path):
    save_teacher(tmp_path / "teacher", labels=3)
    return [str(tmp_path / "teacher"), f"--train_file={write_texts(tmp_path / 'texts.txt')}", *FAST]


def test_a_sentence_encoder_opens_as_it_did(tmp_path, capsys):
    save_teacher(tmp_path / "teacher")
    make_sentence_encoder(tmp_path / "teacher")
    flags = [f"--train_file={write_texts(tmp_path / 'texts.txt')}", *FAST, "--budget", "0.7", "0.4"]
    prune([str(tmp_path / "teacher"), *flags, "--price=parameters", f"--output_dir={tmp_path / 'out'}"])
    events = Log(tmp_path / "out").events("losses")
    losses = {tuple(subset): loss for event in events for subset, loss in event["measured"]}
    # all subsets of six sublayers
    assert len(losses) == 63
    teacher = open_model(str(tmp_path / "teacher"))
    for budget in ("0.7", "0.4"):
        encoder = SentenceTransformer(str(tmp_path / "out" / budget), device="cpu")
        names = encoder[0].model.config.kept_sublayers
        places = tuple(["s0", "f0", "s1", "f1", "s2", "f2"].index(name) for name in names)
        smaller = take_subset(teacher.model, places)
        batch = teacher.tokenizer(TEXTS, padding=True, return_tensors="pt")
        with torch.no_grad():
            states, mask = smaller(**batch).last_hidden_state, batch["attention_mask"][..., None]
        expected = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1))
        torch.testing.assert_close(encoder.encode(TEXTS, convert_to_tensor=True), expected, atol=1e-5, rtol=1e-4)
        prices = {subset: sum(1 + (place % 2) / 4 for place in subset) for subset in losses}
        assert places in losses
        assert prices[places] < prices[(0, 1, 2, 3, 4, 5)]
    table = (tmp_path / "out" / "README.md").read_text()
    # the whole model loses nothing, on these texts and on others
    assert [cell.strip() for cell in table.splitlines()[2].split("|")[2:6]] == ["all", "1.000", "0.0000", "0.0000"]
    assert table in capsys.readouterr().out
    assert (tmp_path / "out" / "subsets.svg").stat().st_size > 1000
    assert "It was not trained behind that." in (tmp_path / "out" / "0.4" / "README.md").read_text()


def test_the_best_subset_within_the_budget_is_kept_whatever_is_cut_off(classifier, tmp_path):
    flags = [*classifier, "--budget=0.5", f"--output_dir={tmp_path / 'out'}", "--price=flops"]
    prune(flags)
    log, card = Log(tmp_path / "out"), (tmp_path / "out" / "README.md").read_text().splitlines()[3]
    first = log.file.read_text()
    log.file.write_text(first[:-9])
    prune(flags)
    assert log.file.read_text() == first
    # but for the time
    again = (tmp_path / "out" / "README.md").read_text().splitlines()[3]
    assert again.split("|")[:5] == card.split("|")[:5]
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out" / "0.5")
    assert len(model.config.kept_sublayers) == model.config.num_sublayers < 6
    assert AutoTokenizer.from_pretrained(tmp_path / "out" / "0.5").pad_token
    with pytest.raises(FileExistsError, match=r"is a pruning with texts .*, not"):
        prune([*flags, "--seed=1"])


@pytest.mark.parametrize("price", ["milliseconds", "cache"])
def test_other_prices(classifier, price, tmp_path):
    prune([*classifier, "--budget=0.7", f"--output_dir={tmp_path / 'out'}", f"--price={price}"])
    assert (tmp_path / "out" / "0.7" / "config.json").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--budget=1.5"], r"--budget 1\.5 is no share of the whole price; give numbers between 0 and 1"),
        ([], "--budget nothing is no share"),
        (["--budget=0.001"], r"no sublayers of .*teacher meet --budget 0\.001; give a larger one"),
        (["--budget=0.5", "--texts=0"], "--texts 0 is too small; give 1 or more"),
        (["--budget=0.5", "--objective=words"], "a classifier has no words; choose from logits"),
        (["--budget=0.5", "--read=next"], "a classifier generates no tokens; give --read all, masked or one"),
        (["--budget=0.5", "--streaming=true"], "leave --streaming out"),
        (["--budget=0.5", "--max_length=33"], "max_length=33 is not between 3 and the model's 32; give another"),
    ],
)
def test_bad_flags_are_refused(classifier, flags, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        prune([*classifier, *flags, f"--output_dir={tmp_path / 'out'}"])

import pytest

from sublayers.hub.loading import load
from sublayers.hub.sources import check_source

MISTAKES = {
    "distill --sublayer_order sf": "the following arguments are required: teacher",
    "distill ./gone --sublayer_order sf": "there is no folder ./gone; give another",
    "distill teacher --sublayer_order=saf": "'a' is not a sublayer; use the letters s (self-attention), w (local",
    "distill teacher shrot_texts": "recipe 'shrot_texts' is unknown; choose from mixed_texts, short_texts or",
    "pretrain --train_file gone.txt": "there is no file gone.txt",
    "pretrain modern --sublayer_order 2s": "'2' is part of a repeat, which needs a letter or a group before it",
    "pretrain gone.yaml": "No such file or directory: 'gone.yaml'",
    "seq2seq --decoder_sublayer_order s(cf": "this parenthesis is never closed",
    "seq2seq --task translation --source a --target b --train_file a.jsonl": "there is no file a.jsonl",
    "glue --model_name_or_path /gone --task_name cola": "there is no folder /gone; give another",
    "convert ./gone new": "there is no folder ./gone; give another",
    "convert gone.pt new": "there is no file gone.pt; give another, a folder, or a name on the Hub",
    "pretrain --lr 3": "unknown option 'lr', did you mean 'local_rank' or 'learning_rate' or 'lr_scheduler_type'?",
    "seq2seq --beams=2": "unknown option 'beams', did you mean 'generation_num_beams'?",
    "glue --learningrate 3": "unknown option 'learningrate', did you mean 'learning_rate'?",
    "prune model --budgets 0.5": "unknown option 'budgets', did you mean 'budget'?",
    "tokenizer --xyzzy red": "unknown option 'xyzzy'\n",
    "study frontier model --student sf": "unknown option 'student', did you mean 'students'?",
    "pretrain odd.yaml": "unknown option 'blok_size', did you mean 'block_size'?",
    "pretrain twice.yaml": "'max_steps' stands there twice",
    "pretrain nested.yaml": "'min_lr' stands there twice",
    "glue --model_name_or_path empty --task_name cola": "empty has no tokenizer that can be read; give a folder",
    "distill empty --sublayer_order sf": "empty has no tokenizer that can be read; give a folder",
    "prune empty --budget 0.5 --output_dir new": "empty has no config.json; give the folder of a trained model",
    "prune ./gone --budget 0.5 --output_dir new": "there is no folder ./gone; give another",
    "recipe short_text": "'short_text' is unknown, did you mean 'short_texts'?; choose from mixed_texts, short_texts,",
    "pretrain iot_n2": "recipe 'iot_n2' belongs to sublayers seq2seq; choose from macaron_bert, modern, nvlamb_phase1",
    "convert . new --sublayer_order sq": "'q' is not a sublayer",
    "export gone new": "there is no folder gone; give that of a trained model",
    "export . new": ". has no config.json; give the folder of a trained model",
    "push gone me/model": "there is no folder gone; give that of a trained model",
}
SETTINGS = {
    "odd.yaml": "max_steps: 3\nblok_size: 8\n",
    "twice.yaml": "max_steps: 3\nseed: 1\nmax_steps: 4\n",
    "nested.yaml": "lr_scheduler_kwargs: {min_lr: 1, min_lr: 2}\n",
}


@pytest.fixture
def place(tmp_path):
    """A folder with what the mistakes name."""
    (tmp_path / "empty").mkdir()
    for name, text in SETTINGS.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(("line", "message"), MISTAKES.items())
def test_a_mistake_is_told_in_one_sentence(line, message, refusal, place, monkeypatch):
    monkeypatch.chdir(place)
    assert message in refusal(*line.split())


def test_a_name_that_may_be_on_the_hub_is_no_missing_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("bert-base-uncased", "google-bert/bert-base_uncased.v1", "runs/bert"):
        check_source(name)
    for name in ("./bert", "/bert", "../bert", "runs/glue/mrpc", "~/bert", "runs/bert/"):
        with pytest.raises(FileNotFoundError, match=r"there is no folder .*bert|mrpc; give another"):
            check_source(name)
        (tmp_path / "runs").mkdir(exist_ok=True)
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    check_source("a/b/c")


def test_a_name_that_is_neither_a_folder_nor_on_the_hub_is_told_as_both():
    from transformers import AutoConfig

    # the tests are offline
    with pytest.raises(FileNotFoundError, match="there is no folder runs/bert, and a repository of that name"):
        load(AutoConfig, "runs/bert")

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from launched import python
from PIL import Image
from tiny_runs import check_same_run
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

from sublayers.training import cli
from sublayers.training.commands.pretrain import main as pretrain

pytestmark = pytest.mark.slow

SIZES = {"sublayer_order": "sfsff", "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2}
SIZES |= {"block_size": 16, "tokenizer_model": "byte", "use_cpu": True, "disable_tqdm": True}
# a rate of 0 at the end would hide a step too many
SIZES |= {"lr_scheduler_type": "constant_with_warmup", "learning_rate": 0.01, "logging_steps": 1, "eval_steps": 3}
FAMILIES = {
    "par_transformer_xl": {"memory_length": 20, "adaptive_cutoffs": [100, 200]},
    "sandwich_char_lm": {"attention_span": 100, "initial_span_share": 0.1, "span_ramp_size": 8, "span_loss": 1e-3},
}
every_family = pytest.mark.parametrize("family", FAMILIES)


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """Make the settings of a tiny run, nineteen segments in each of four rows."""
    folder = tmp_path_factory.mktemp("settings")
    # 1,105 bytes to train on
    (folder / "corpus.txt").write_text("".join(f"line {n} of a tiny corpus\n" for n in range(1000, 1046)))

    def write(family, **settings):
        path = folder / f"{family}.yaml"
        common = {"model_type": family, "train_file": str(folder / "corpus.txt"), "per_device_train_batch_size": 4}
        path.write_text(json.dumps(SIZES | FAMILIES[family] | common | settings))
        return str(path)

    return write


@pytest.fixture(scope="module")
def trained(settings, tmp_path_factory):
    """What three steps leave of each family."""
    folders = {family: tmp_path_factory.mktemp("trained") / family for family in FAMILIES}
    for family, folder in folders.items():
        pretrain([settings(family, max_steps=3), "--output_dir", str(folder)])
    return folders


@every_family
@pytest.mark.representatives(1)
def test_a_resumed_run_ends_as_if_it_had_never_stopped(family, tmp_path, settings):
    dropout = {"dropout": 0.1, "attention_dropout": 0.1, "max_steps": 15, "save_steps": 1, "save_total_limit": 99}
    flags = ["pretrain", settings(family, **dropout, gradient_accumulation_steps=2), "--output_dir"]
    whole = tmp_path / "whole"
    cli.main([*flags, str(whole)])
    # within an epoch, at its end, and within the next one
    for step in (4, 10, 13):
        state = json.loads((whole / f"checkpoint-{step}" / "trainer_state.json").read_text())
        assert (state["epoch"] == 1) == (step == 10)
        out = tmp_path / str(step)
        shutil.copytree(whole / f"checkpoint-{step}", out / f"checkpoint-{step}")
        cli.main([*flags, str(out), "--resume_from_checkpoint"])
        assert (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
        # nothing of the stream is lost, either
        assert (out / "loss_curve.json").read_bytes() == (whole / "loss_curve.json").read_bytes()


def test_a_checkpoint_of_another_stream_is_refused(tmp_path, settings, trained, refusal):
    whole = shutil.copytree(trained["par_transformer_xl"], tmp_path / "out") / "checkpoint-3"
    flags = ["pretrain", settings("par_transformer_xl", max_steps=4), "--output_dir", tmp_path / "out"]
    flags += ["--resume_from_checkpoint"]
    assert "reads a stream of {'tokens': " in refusal(*flags, "--per_device_train_batch_size", "2")
    assert "'segment_length': 16, " in refusal(*flags, "--block_size", "8")
    (whole / "memory_0.pt").unlink()
    assert "memory_0.pt" in refusal(*flags)


@every_family
@pytest.mark.full
def test_two_launched_processes_train_and_score_as_one(family, tmp_path, settings):
    dropout = dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0)
    # past the end of an epoch
    flags = [settings(family, **dropout, max_steps=12, gradient_accumulation_steps=2, save_steps=12)]
    flags += ["--per_device_eval_batch_size", "2", "--per_device_train_batch_size"]
    pretrain([*flags, "4", "--output_dir", str(tmp_path / "one")])
    launcher = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--main_process_port", "0"]
    command = ["-m", "sublayers", "pretrain", *flags, "2", "--output_dir", str(tmp_path / "two")]
    python(*launcher, *command, home=tmp_path)
    memories = {path.name for path in (tmp_path / "two" / "checkpoint-12").glob("memory*")}
    assert memories == {"memory_0.pt", "memory_1.pt"}
    check_same_run(tmp_path / "two", tmp_path / "one")


def test_evaluation_has_lengths_of_its_own(tmp_path, settings, trained):
    out = trained["par_transformer_xl"]
    evaluation = [settings("par_transformer_xl"), "--do_eval", "--model_name_or_path", str(out)]

    def evaluate(name, *flags):
        return pretrain([*evaluation, "--output_dir", str(tmp_path / name), *flags])["eval_loss"]

    longer = ["--evaluation_length", "7", "--evaluation_memory_length", "40", "--evaluation_clamp_length", "9"]
    scores = [evaluate("plain")]
    for number in range(0, len(longer), 2):
        scores.append(evaluate(str(number), *longer[number : number + 2]))
    scores.append(evaluate("all", *longer))
    assert len({*scores}) == 5
    rows = evaluate("rows", *longer, "--per_device_eval_batch_size", "3")
    assert rows == pytest.approx(scores[-1], rel=1e-6)
    # the same as flags of the model
    same = ["--memory_length", "40", "--clamp_length", "9", "--same_length", "--block_size", "7"]
    assert evaluate("same", *same) == pytest.approx(scores[-1], rel=1e-6)
    config = AutoModelForCausalLM.from_pretrained(out).config
    assert (config.memory_length, config.clamp_length, config.same_length) == (20, None, False)
    assert config.max_position_embeddings is None


@every_family
def test_what_was_trained_writes_a_text_of_any_length(family, trained):
    write = pipeline("text-generation", model=str(trained[family]), tokenizer=str(trained[family]))
    [written] = write("line", max_new_tokens=150, do_sample=False, eos_token_id=None)
    assert written["generated_text"].startswith("line")


@pytest.mark.parametrize("source", ["corpus", "file"])
def test_words_of_a_corpus_or_a_file_and_their_adaptive_softmax(source, tmp_path, settings):
    words = tmp_path / "words.txt"
    words.write_text("corpus\ntiny\na\nof\nline\n")
    flags = {"corpus": ["--vocab_size", "20"], "file": ["--vocabulary_file", str(words)]}[source]
    cutoffs = {"corpus": [4, 12], "file": [3, 5]}[source]
    given = settings("par_transformer_xl", adaptive_cutoffs=cutoffs, tokenizer_model="word", block_size=4, max_steps=3)
    metrics = pretrain([given, *flags, "--optimizer", "jitlamb", "--output_dir", str(tmp_path / "out")])
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    first = {"corpus": ["line", "of", "a"], "file": ["<eos>", "<unk>", "corpus"]}[source]
    known = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    assert [word for word in known if source == "file" or word[0] != "<"][:3] == first
    config = AutoModelForCausalLM.from_pretrained(tmp_path / "out").config
    assert config.vocab_size == len(tokenizer) == {"corpus": 20, "file": 7}[source]
    assert config.eos_token_id == tokenizer.convert_tokens_to_ids("<eos>")
    # every word and every end of a line is scored, which for words is all that counts
    lines = Path(given).with_name("corpus.txt").read_text().splitlines(keepends=True)[:3]
    nats = metrics["eval_bits_per_character"] * math.log(2) * sum(map(len, lines))
    assert nats / sum(len(line.split()) + 1 for line in lines) == pytest.approx(metrics["eval_loss"])


def test_a_character_model_is_trained_with_adagrad_that_clips(tmp_path, settings):
    given = settings("sandwich_char_lm", max_steps=2, tokenizer_model="char")
    weights = []
    for number, flags in enumerate([[], ["--max_tensor_grad_norm", "0.03"]]):
        out = tmp_path / str(number)
        pretrain([given, "--optimizer", "adagrad", *flags, "--output_dir", str(out)])
        weights.append(AutoModelForCausalLM.from_pretrained(out).lm_head.weight)
    assert not weights[0].equal(weights[1])


def test_the_spans_that_were_learned_are_drawn(tmp_path, settings, trained):
    out = trained["sandwich_char_lm"]
    shares = [attention.span for attention in AutoModelForCausalLM.from_pretrained(out).span_attentions()]
    spans = torch.tensor(json.loads((out / "spans.json").read_text()))
    torch.testing.assert_close(spans, torch.stack(shares).detach().clamp(0, 1) * 100, atol=0.1, rtol=0)
    assert len({*spans.flatten().tolist()}) > 1
    assert min(Image.open(out / "spans.png").size) > 400
    given = settings("sandwich_char_lm", max_steps=1, adaptive_span=False)
    pretrain([given, "--output_dir", str(tmp_path / "b")])
    assert not (tmp_path / "b" / "spans.json").exists()

import json
import logging
import math
import shutil
from collections import Counter
from pathlib import Path

import pytest
import torch
from common import VOCAB, GradientCatcher, assert_same, gradients, randomize
from common_iot_naive import naive_terms
from common_seq2seq_training import collator, ragged_rows, trainer_arguments
from launched import python
from safetensors.torch import load_file
from tiny_runs import make_commands
from transformers import AutoModelForSeq2SeqLM

from sublayers import IOTSeq2SeqConfig, IOTSeq2SeqForConditionalGeneration
from sublayers.modeling import modeling_iot_seq2seq
from sublayers.training.commands.seq2seq import main as seq2seq
from sublayers.training.trainers.order_trainer import OrderTrainer

pytestmark = pytest.mark.slow

SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "vocab_size": VOCAB, "dropout": 0.0}
ORDERS = {"encoder_orders": ["sf", "fs"], "decoder_orders": ["scf", "fsc", "cfs"]}
BLOCKS = {"num_encoder_blocks": 1, "num_decoder_blocks": 1}
WEIGHTS = {"diversity_weight": 2.0, "sharpness_weight": 1.0}
TERMS = ("cross_entropy", "diversity", "sharpness")


class OrderGradientCatcher(GradientCatcher, OrderTrainer):
    pass


@pytest.fixture
def no_noise(monkeypatch):
    monkeypatch.setattr(torch.nn.functional, "gumbel_softmax", lambda logits, tau, dim: (logits / tau).softmax(dim))


def make_model(**options):
    config = IOTSeq2SeqConfig(**SIZES | ORDERS | BLOCKS | WEIGHTS | {"label_smoothing": 0.1} | options)
    return randomize(IOTSeq2SeqForConditionalGeneration(config))


def make_trainer(trainer_class, model, folder, rows, **options):
    options = {"train_sampling_strategy": "sequential", "logging_steps": 1} | options
    arguments = trainer_arguments(folder, **options)
    return trainer_class([], None, model=model, args=arguments, train_dataset=rows, data_collator=collator(model))


def logged(trainer) -> list[dict[str, float]]:
    return [entry for entry in trainer.state.log_history if "loss" in entry]


def naive_loss(model, rows):
    """Of all rows at once, and its terms."""
    rows = [{name: torch.tensor(ids) for name, ids in row.items()} for row in rows]
    rows = [row | {"attention_mask": torch.ones_like(row["input_ids"])} for row in rows]
    summed, diversity, sharpness = naive_terms(model, rows)
    terms = (summed / sum(len(row["labels"]) for row in rows), diversity, sharpness)
    return terms[0] + 2 * terms[1] + terms[2], terms


@pytest.mark.parametrize("options", [{}, {"order_paths": "paired"}, {"encoder_orders": ["sf"]}])
@pytest.mark.representatives(2)
def test_accumulated_gradients_and_terms_are_those_of_one_batch(options, no_noise, tmp_path):
    model, rows = make_model(**options), ragged_rows(5)
    loss, terms = naive_loss(model, rows)
    loss.backward()
    expected = gradients(model)
    for size in (5, 2):
        model.zero_grad()
        settings = {"per_device_train_batch_size": size, "gradient_accumulation_steps": -(-5 // size)}
        settings |= {"max_steps": 1, "max_grad_norm": 0, "learning_rate": 0.0}
        trainer = make_trainer(OrderGradientCatcher, model, tmp_path, rows, **settings)
        assert_same(trainer.caught(), expected, atol=1e-5, rtol=1e-4)
        (entry,) = logged(trainer)
        assert entry["loss"] == pytest.approx(loss.item(), abs=1e-3)
        assert [entry[name] for name in TERMS] == pytest.approx([term.item() for term in terms], abs=1e-4)


@pytest.mark.full
def test_two_processes_have_the_gradients_of_one(no_noise, tmp_path):
    model = make_model()
    model.save_pretrained(tmp_path / "model")
    loss, _ = naive_loss(model, ragged_rows())
    loss.backward()
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    python(*launcher, Path(__file__).with_name("order_worker.py"), tmp_path / "model", tmp_path)
    assert_same(load_file(tmp_path / "gradients.safetensors"), gradients(model), atol=1e-5, rtol=1e-4)


def test_logs_how_many_sentences_choose_each_order(tmp_path):
    model, rows = make_model(), ragged_rows()
    options = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "max_steps": 4, "logging_steps": 2}
    trainer = make_trainer(OrderTrainer, model, tmp_path, rows, **options, learning_rate=0.05)
    outputs = []
    model.register_forward_hook(lambda _, args, out: outputs.append(out))
    trainer.train()
    assert len(outputs) == 8
    for entry, found in zip(logged(trainer), (outputs[:4], outputs[4:]), strict=True):
        for stack, orders in (("encoder", model.config.encoder_orders), ("decoder", model.config.decoder_orders)):
            counts = Counter(torch.cat([out[f"{stack}_order"] for out in found]).tolist())
            shares = [entry[f"{stack}_{order}"] for order in orders]
            assert shares == pytest.approx([counts[i] / 8 for i in range(len(orders))])
            assert sum(shares) == pytest.approx(1)
        # means of two steps
        for name in TERMS:
            assert entry[name] == pytest.approx(sum(out[name].item() for out in found) / 2, abs=1e-5)
        terms = entry["cross_entropy"] + 2 * entry["diversity"] + entry["sharpness"]
        assert entry["loss"] == pytest.approx(terms, abs=1e-3)


@pytest.mark.parametrize("collapsed", [False, True])
def test_warns_when_an_order_takes_over(collapsed, tmp_path, caplog):
    model = make_model()
    with torch.no_grad():
        # nothing speaks for any: the first
        model.model.encoder.decoder_order_predictor.weight.mul_(not collapsed)
    options = {"per_device_train_batch_size": 8, "max_steps": 1, "learning_rate": 0.0}
    trainer = make_trainer(OrderTrainer, model, tmp_path, ragged_rows(), **options)
    with caplog.at_level(logging.WARNING, "sublayers.training.trainers.order_trainer"):
        trainer.train()
    shares = [logged(trainer)[0][f"decoder_{order}"] for order in model.config.decoder_orders]
    assert (max(shares) == 1) == collapsed
    warning = "100.0% of the sentences choose the decoder order scf: a larger diversity_weight (now 2.0) spreads"
    said = [record.getMessage() for record in caplog.records if record.name.endswith("order_trainer")]
    assert [warning in line for line in said] == [True] * collapsed


def test_without_prediction_there_are_terms_but_no_shares(tmp_path):
    model = make_model(predict_order=False)
    trainer = make_trainer(OrderTrainer, model, tmp_path, ragged_rows(), max_steps=2)
    trainer.train()
    entries = logged(trainer)
    assert entries
    for entry in entries:
        assert entry["cross_entropy"] == pytest.approx(entry["loss"], abs=1e-3)
        assert entry["diversity"] == entry["sharpness"] == 0
        assert not [name for name in entry if name.startswith(("encoder_", "decoder_"))]


def test_the_temperature_falls_and_a_resumed_run_goes_on_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr(modeling_iot_seq2seq, "ANNEALING_STEPS", 2)
    options = {"max_steps": 7, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "save_steps": 1}
    options |= {"save_strategy": "steps", "learning_rate": 0.01, "lr_scheduler_type": "constant"}
    seen, histories, trained = [], [], []
    for resumed in (False, True):
        model = make_model(gumbel_temperature=5.0, gumbel_temperature_min=2.0, gumbel_temperature_decay=0.2)
        seen.append([])
        model.register_forward_pre_hook(lambda module, _: seen[-1].append(module.temperature))
        trainer = make_trainer(OrderTrainer, model, tmp_path, ragged_rows(), **options)
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3") if resumed else None)
        histories.append(logged(trainer))
        trained.append(dict(model.named_parameters()))
    expected = [max(5 * math.exp(-0.2 * (step - step % 2)), 2.0) for step in range(7) for _ in range(2)]
    assert expected[0] == 5
    assert expected[-1] == 2
    assert seen[0] == pytest.approx(expected)
    assert seen[1] == pytest.approx(expected[6:])
    assert_same(*trained, atol=0, rtol=0)
    # terms and shares, too
    keys = {*TERMS, *(f"{stack}_{o}" for stack in ("encoder", "decoder") for o in ORDERS[f"{stack}_orders"])}
    for whole, broken in zip(*histories, strict=True):
        assert keys < whole.keys()
        assert {key: broken[key] for key in keys} == pytest.approx({key: whole[key] for key in keys})


def test_the_command_trains_evaluates_and_predicts(tmp_path):
    make_commands(tmp_path)
    tiny = {name: value for name, value in SIZES.items() if name not in ("vocab_size", "dropout")} | ORDERS | BLOCKS
    tiny |= {"model_type": "iot_seq2seq", "vocab_size": 300, "max_source_length": 24, "max_target_length": 24}
    tiny |= {"max_steps": 3, "logging_steps": 1, "num_beams": 2, "use_cpu": True, "disable_tqdm": True}
    tiny |= {"label_smoothing_factor": 0.2, "max_tokens": 80, "save_steps": 1, "gradient_accumulation_steps": 2}
    tiny |= {"dropout": 0.2, "layerdrop": 0.2, "predictor_dropout": 0.1, "task": "translation"}
    tiny |= {"source": "source", "target": "target", "max_eval_samples": 9, "max_predict_samples": 9}
    tiny |= {f"{split}_file": str(tmp_path / "pairs.jsonl") for split in ("train", "validation", "test")}
    (tmp_path / "settings.yaml").write_text(json.dumps(tiny))
    flags, out = [str(tmp_path / "settings.yaml"), "--output_dir"], tmp_path / "out"
    metrics = seq2seq([*flags, str(out)])
    assert {"train_loss", "eval_loss", "eval_bleu", "test_loss", "test_bleu"} <= metrics.keys()
    config = AutoModelForSeq2SeqLM.from_pretrained(out).config
    assert (config.model_type, config.label_smoothing) == ("iot_seq2seq", 0.2)
    assert {name: getattr(config, name) for name in ORDERS} == ORDERS
    history = json.loads((out / "checkpoint-3" / "trainer_state.json").read_text())["log_history"]
    entries = [entry for entry in history if "loss" in entry]
    assert len(entries) == 3
    for entry in entries:
        terms = entry["cross_entropy"] + 0.1 * entry["diversity"] + 0.01 * entry["sharpness"]
        assert entry["loss"] == pytest.approx(terms, abs=1e-3)
        for stack in ("encoder", "decoder"):
            assert sum(entry[f"{stack}_{order}"] for order in ORDERS[f"{stack}_orders"]) == pytest.approx(1)

    # killed after the second step
    broken = tmp_path / "broken"
    shutil.copytree(out / "checkpoint-2", broken / "checkpoint-2")
    seq2seq([*flags, str(broken), "--do_train", "--resume_from_checkpoint"])
    assert (broken / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()

import math

import numpy as np
import pytest
import torch
from common import assert_same
from transformers import default_data_collator

from sublayers import (
    PARTransformerXLConfig,
    PARTransformerXLForCausalLM,
    SandwichCharLMConfig,
    SandwichCharLMForCausalLM,
)
from sublayers.training.data.segments import training_segments, whole_text
from sublayers.training.trainers.arguments import TrainerArguments
from sublayers.training.trainers.stream_trainer import StreamTrainer

SIZES = {"vocab_size": 30, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2}
SIZES |= dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0)
ORDER = {"sublayer_order": "sfsff"}
TOKENS = np.random.default_rng(0).integers(0, 30, 110).astype(np.int32)


def transformer_xl(**settings):
    torch.manual_seed(0)
    config = PARTransformerXLConfig(**SIZES | ORDER | {"memory_length": 7, "adaptive_cutoffs": [10, 20]} | settings)
    return PARTransformerXLForCausalLM(config)


def character_model(**settings):
    torch.manual_seed(0)
    # spans that have been learned, and cost something
    given = {"attention_span": 100, "initial_span_share": 0.05, "span_ramp_size": 4, "span_loss": 1e-3}
    return SandwichCharLMForCausalLM(SandwichCharLMConfig(**SIZES | ORDER | given | settings))


MODELS = {"Transformer-XL": transformer_xl, "characters": character_model}


def trainer(folder, model, train=None, evaluation=None, evaluation_settings=None, **settings):
    quiet = {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "save_strategy": "no"}
    return StreamTrainer(
        model=model,
        args=TrainerArguments(str(folder), **quiet | settings),
        train_dataset=train,
        eval_dataset=evaluation,
        data_collator=default_data_collator,
        evaluation_settings=evaluation_settings,
    )


@pytest.mark.parametrize("family", MODELS)
def test_each_row_remembers_its_part_over_steps_and_accumulation_but_not_over_epochs(family, tmp_path):
    model, naive = MODELS[family](), MODELS[family]()
    settings = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "max_steps": 9}
    settings |= {"learning_rate": 0.1, "optim": "sgd", "max_grad_norm": 0.0, "lr_scheduler_type": "constant"}
    # three and a half steps of two segments in an epoch, the last one short
    segments = training_segments(TOKENS, 8, 2)
    trainer(tmp_path, model, segments, **settings).train()

    naive.train()
    optimizer = torch.optim.SGD(naive.parameters(), 0.1)
    part = torch.from_numpy(TOKENS[:109].astype(np.int64))
    ids, labels = part[:108].view(2, 54), part[1:109].view(2, 54)
    steps = 0
    while steps < 9:
        memory = naive.empty_memory(2)
        for start in range(0, 54, 16):
            chunks = [slice(start + more, min(start + more + 8, 54)) for more in (0, 8) if start + more < 54]
            number = sum(labels[:, chunk].numel() for chunk in chunks)
            for chunk in chunks:
                out = naive(ids[:, chunk], memory=memory, shift_labels=labels[:, chunk], num_items_in_batch=number)
                out.loss.backward()
                memory = out.memory
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            if steps == 9:
                break
    assert_same(dict(model.named_parameters()), dict(naive.named_parameters()), atol=1e-6, rtol=1e-5)


EVALUATIONS = {
    "Transformer-XL": [{}, {"memory_length": 20, "clamp_length": 9, "same_length": True}],
    "characters": [{}],
}


@pytest.mark.parametrize(("family", "length"), [("Transformer-XL", 8), ("Transformer-XL", 3), ("characters", 8)])
def test_a_text_has_one_score_however_many_rows_read_it(family, length, tmp_path):
    model = MODELS[family]().eval()
    for parameter in model.parameters():
        # scores that depend on what was read long ago
        torch.nn.init.normal_(parameter, std=0.5) if parameter.ndim > 1 else None
    # the Trainer switches it off
    model.config.use_cache = False
    before = model.config.to_dict()
    for settings in EVALUATIONS[family]:
        model.config.update(settings)
        memory, nats = model.empty_memory(1), []
        for start in range(0, 109, length):
            ids = torch.from_numpy(TOKENS[None, start : min(start + length, 109) + 1].astype(np.int64))
            with torch.no_grad():
                out = model(ids[:, :-1], memory=memory)
            memory = out.memory
            nats += out.logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).flatten().neg().tolist()
        model.config.update(before)
        for rows in (1, 2, 3, 20):
            found, text = [], whole_text(TOKENS, length)
            evaluator = trainer(tmp_path, model, None, text, settings, per_device_eval_batch_size=rows)
            evaluator.compute_metrics = lambda got, found=found: found.append(got) or {}
            evaluator.evaluate()
            [prediction] = found
            scored = prediction.label_ids != -100
            assert scored.sum() == len(nats) == 109
            total = prediction.predictions[scored].sum(dtype=np.float64)
            assert total == pytest.approx(sum(nats), rel=1e-6)
    assert model.config.to_dict() == before


def test_without_what_was_read_before_a_part_its_score_is_another(tmp_path, monkeypatch):
    monkeypatch.setattr(StreamTrainer, "reach", lambda self, length: 0)
    with pytest.raises(AssertionError):
        test_a_text_has_one_score_however_many_rows_read_it("Transformer-XL", 8, tmp_path)


def test_evaluation_leaves_the_memory_of_training_alone(tmp_path):
    weights = []
    for evaluates in (False, True):
        model = transformer_xl()
        settings = {"max_steps": 5, "per_device_train_batch_size": 2, "learning_rate": 0.01}
        settings |= {"eval_strategy": "steps", "eval_steps": 2} if evaluates else {}
        text = whole_text(TOKENS[:40], 8)
        trainer(tmp_path, model, training_segments(TOKENS, 8, 2), text, **settings).train()
        weights.append({name: parameter.clone() for name, parameter in model.named_parameters()})
    assert_same(*weights, atol=0, rtol=0)


def test_a_part_reads_before_itself_as_far_as_its_attentions_reach(tmp_path):
    for memory_length, reach in ((0, 0), (7, 2), (8, 2), (9, 4)):
        assert trainer(tmp_path, transformer_xl(memory_length=memory_length)).reach(8) == reach
    # spans that are learned end long before the longest
    model = character_model(attention_span=1000)
    lengths = [math.ceil(attention.memory_length / 8) for attention in model.span_attentions()]
    assert trainer(tmp_path, model).reach(8) == sum(lengths) < 1000 / 8

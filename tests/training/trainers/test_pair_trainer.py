import random
from collections import Counter
from types import SimpleNamespace

import datasets
import numpy as np
import pytest
import torch
from accelerate.data_loader import prepare_data_loader, skip_first_batches
from common import GradientCatcher, assert_same, gradients
from common_seq2seq_training import collator
from torch.utils.data import DataLoader
from transformers import AutoModelForSeq2SeqLM, TrainerState

from sublayers import SandwichSeq2SeqConfig
from sublayers.training.data.pairs import tokenize_pairs, train_pair_tokenizers
from sublayers.training.trainers.arguments import Seq2SeqTrainerArguments
from sublayers.training.trainers.pair_trainer import PairTrainer, Scorer

pytestmark = pytest.mark.slow


def tiny_trainer(trainer_class, folder, max_tokens, **arguments):
    """A trainer on pairs that differ in their first tokens, its pairs and its model."""
    draw = random.Random(0)
    rows = [
        {"input_ids": [5 + n, *[4] * draw.randint(0, 8), 2], "labels": [5 + n, *[4] * draw.randint(0, 8), 2]}
        for n in range(30)
    ]
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "vocab_size": 40, "dropout": 0.0}
    orders = {"encoder_sublayer_order": "sf", "decoder_sublayer_order": "scf"}
    torch.manual_seed(0)
    model = AutoModelForSeq2SeqLM.from_config(SandwichSeq2SeqConfig(**sizes, **orders, label_smoothing=0.2))
    # the command leaves the smoothing to the model
    arguments |= {"do_train": True, "use_cpu": True, "save_strategy": "no", "label_smoothing_factor": 0.0}
    args = Seq2SeqTrainerArguments(output_dir=str(folder), disable_tqdm=True, **arguments)
    data = datasets.Dataset.from_list(rows)
    return trainer_class(
        [], max_tokens, model=model, args=args, train_dataset=data, data_collator=collator(model)
    ), rows


def test_token_batches_show_each_pair_once_in_an_epoch(tmp_path):
    trainer, rows = tiny_trainer(PairTrainer, tmp_path, 40, num_train_epochs=2)
    seen = []
    trainer.model.register_forward_pre_hook(lambda _, args, kwargs: seen.append(kwargs), with_kwargs=True)
    trainer.train()
    steps = trainer.state.max_steps // 2
    assert len(seen) == 2 * steps
    epochs = [[batch["input_ids"][:, 0].tolist() for batch in seen[e * steps : (e + 1) * steps]] for e in range(2)]
    for batches in epochs:
        assert Counter(n for batch in batches for n in batch) == Counter(row["input_ids"][0] for row in rows)
    assert epochs[0] != epochs[1]
    assert all(max(batch["input_ids"].numel(), batch["labels"].numel()) <= 40 for batch in seen)


def test_every_process_of_a_resumed_run_has_its_batches_of_the_epoch(tmp_path):
    trainer, _ = tiny_trainer(PairTrainer, tmp_path, 40)
    batches = trainer.batches
    batches.set_epoch(3)
    whole = list(batches)
    batches.set_epoch(0)
    for process in range(2):
        loader = DataLoader(range(30), batch_sampler=batches, collate_fn=list)
        loader = prepare_data_loader(loader, num_processes=2, process_index=process, put_on_device=False)
        resumed = skip_first_batches(loader, 1)
        trainer.callback_handler.on_epoch_begin(trainer.args, TrainerState(epoch=3.2), trainer.control)
        # both processes do as many steps
        assert list(resumed) == (whole + whole[: len(whole) % 2])[2 + process :: 2]


class PairGradientCatcher(GradientCatcher, PairTrainer):
    pass


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler")
def test_accumulated_token_batches_have_the_gradients_of_one_batch(tmp_path):
    number = len(tiny_trainer(PairTrainer, tmp_path, 40)[0].get_train_dataloader())
    assert number > 5
    settings = {"max_steps": 1, "max_grad_norm": 0, "gradient_accumulation_steps": number}
    trainer, rows = tiny_trainer(PairGradientCatcher, tmp_path, 40, **settings)
    model = trainer.model.eval()
    losses, smoothing = [], 0.2
    for row in rows:
        scores = model(torch.tensor([row["input_ids"]]), labels=torch.tensor([row["labels"]])).logits[0].log_softmax(-1)
        right = scores.gather(1, torch.tensor(row["labels"])[:, None])[:, 0]
        losses.append((1 - smoothing) * -right - smoothing * scores.mean(-1))
    torch.cat(losses).mean().backward()
    expected = {name: gradient.clone() for name, gradient in gradients(model).items()}
    model.zero_grad()
    assert_same(trainer.caught(), expected, rtol=1e-4, atol=1e-6)


def test_predictions_stand_beside_their_pairs_although_long_sources_come_first(tmp_path):
    rows = [{"source": "a " * (7 * n % 5 + 1), "target": f"{n} \u00e9\n"} for n in range(5)]
    pairs = datasets.Dataset.from_list(rows)
    [tokenizer] = train_pair_tokenizers(pairs, [262])
    encoded = tokenize_pairs(pairs, tokenizer, tokenizer, 32, 32, drop_long=False, desc="test")
    scored = []
    scorer = Scorer(pairs, encoded, tokenizer, lambda *texts: scored.append(texts) or {"bleu": 1.0})
    lengths = [len(ids) for ids in scorer.rows["input_ids"]]
    assert lengths == sorted(lengths, reverse=True) != [len(ids) for ids in encoded["input_ids"]]
    # as the Trainer hands it over, with rows that fill up the last batch
    generated = np.full((7, 40), -100)
    for place, ids in enumerate([*scorer.rows["labels"], *scorer.rows["labels"][:2]]):
        generated[place, : len(ids)] = ids
    assert scorer(SimpleNamespace(predictions=generated)) == {"bleu": 1.0}
    targets = [row["target"] for row in rows]
    assert scored == [(targets, targets)]
    scorer.save(tmp_path / "predictions.jsonl")
    saved = datasets.Dataset.from_json(str(tmp_path / "predictions.jsonl"), cache_dir=str(tmp_path / "cache"))
    assert saved.to_list() == [{**row, "prediction": row["target"]} for row in rows]

import math

import numpy as np
import pytest
import torch
from number_words import numbers_tokenizer, rows
from transformers import BertConfig, BertForMaskedLM, BertForPreTraining, Trainer, TrainingArguments

from sublayers.training.trainers.language_modeling import masked_trainer_arguments

TOKENIZER = numbers_tokenizer(60)
SIZES = {"vocab_size": len(TOKENIZER), "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
QUIET = {"save_strategy": "no", "use_cpu": True, "report_to": "none", "disable_tqdm": True}


def test_the_trainer_tells_the_examples_the_epoch(tmp_path):
    text = rows(*[" ".join(map(str, range(start, start + 20, 2))) for start in (0, 20, 40)])
    arguments = masked_trainer_arguments(TOKENIZER, text, None, True, block_size=12, seed=0, whole_word_mask=False)
    model = BertForPreTraining(BertConfig(**SIZES))
    seen = []
    model.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(kwargs["input_ids"][0].tolist()), with_kwargs=True
    )
    settings = {"num_train_epochs": 3, "per_device_train_batch_size": 1, "train_sampling_strategy": "sequential"}
    Trainer(model, TrainingArguments(str(tmp_path), **settings, **QUIET), **arguments).train()
    expected = []
    examples = arguments["train_dataset"]
    for epoch in range(3):
        examples.epoch.fill_(epoch)
        expected += [examples[index]["input_ids"].tolist() for index in range(len(examples))]
    assert seen == expected


@pytest.mark.parametrize("pairs", [False, True])
def test_metrics_are_means_over_all_masked_tokens_and_pairs(pairs, tmp_path):
    text = rows(*[" ".join(map(str, range(n % 7, n % 7 + 2 * n, 2))) for n in range(3, 15)])
    settings = {"block_size": 12, "seed": 3, "whole_word_mask": False}
    arguments = masked_trainer_arguments(TOKENIZER, None, text, pairs, **settings)
    config = BertConfig(**SIZES, initializer_range=0.5)
    model = (BertForPreTraining if pairs else BertForMaskedLM)(config).eval()
    nats, hits, pair_nats, pair_hits = [], [], [], []
    for index in range(len(arguments["eval_dataset"])):
        example = arguments["eval_dataset"][index]
        names = {"input_ids", "token_type_ids"} & example.keys()
        with torch.no_grad():
            output = model(**{name: torch.from_numpy(example[name])[None] for name in names})
        logits = output[0][0]
        for position, label in enumerate(example["labels"]):
            if label != -100:
                nats.append(-logits[position].log_softmax(-1)[label].item())
                hits.append(logits[position].argmax() == label)
        if pairs:
            scores = output.seq_relationship_logits[0]
            pair_nats.append(-scores.log_softmax(-1)[example["next_sentence_label"]].item())
            pair_hits.append(scores.argmax() == example["next_sentence_label"])
    expected = {"loss": np.mean(nats), "perplexity": math.exp(np.mean(nats)), "masked_accuracy": np.mean(hits)}
    if pairs:
        expected |= {"next_sentence_loss": np.mean(pair_nats), "next_sentence_accuracy": np.mean(pair_hits)}
    trainer = Trainer(model, TrainingArguments(str(tmp_path), per_device_eval_batch_size=5, **QUIET), **arguments)
    # masks and pairs are the same in every evaluation
    for _ in range(2):
        metrics = trainer.evaluate()
        for name, value in expected.items():
            assert metrics[f"eval_{name}"] == pytest.approx(value, rel=1e-4), name

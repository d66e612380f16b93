"""Fine-tune any order with transformers' Trainer: `python examples/trainer_glue.py runs/bert train.jsonl dev.jsonl`.

The files have columns `sentence` and `label`, as those of SST-2 on the Hub.
"""

import sys

from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

import sublayers  # noqa: F401, the Auto classes know our models now

folder, train, validation = sys.argv[1:4]
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2)
texts = load_dataset("json", data_files={"train": train, "validation": validation})
texts = texts.map(lambda rows: tokenizer(rows["sentence"], truncation=True), batched=True)
arguments = TrainingArguments("runs/trainer", num_train_epochs=3, learning_rate=1e-4, report_to="none")
trainer = Trainer(
    model,
    arguments,
    train_dataset=texts["train"],
    eval_dataset=texts["validation"],
    processing_class=tokenizer,
    compute_metrics=lambda scored: {"accuracy": (scored.predictions.argmax(-1) == scored.label_ids).mean()},
)
trainer.train()
print(trainer.evaluate())
trainer.save_model("runs/trainer/best")

"""The demo's second part: pre-train a small BERT, and let it judge which statements Python accepts."""

import json
from pathlib import Path

from rich.console import Console
from transformers import AutoModelForSequenceClassification

from sublayers.configuration.order import sandwich
from sublayers.training import cli
from sublayers.training.data.statements import acceptable_statements
from sublayers.training.lab.demo.stranger import run
from sublayers.training.results import Row, table

# few steps need larger weights to begin with, and norms before the sublayers
PRETRAINING = f"""
    --objective mlm+nsp --model_type par_bert --sublayer_order {sandwich(4, 2)} --hidden_size 64 --intermediate_size 256
    --num_attention_heads 4 --norm_position pre --final_norm true --embedding_norm false --scale_embedding true
    --initializer_range 0.1 --dropout 0 --attention_dropout 0 --vocab_size 2000 --block_size 64
    --max_position_embeddings 128 --per_device_train_batch_size 32 --per_device_eval_batch_size 32
    --max_eval_samples 10 --learning_rate 3e-3 --eval_strategy no --save_strategy no --logging_steps 0.2
"""
FINE_TUNING = "--task_name cola --learning_rate 2e-3 --max_length 48 --logging_steps 0.2"
# the steps of fine-tuning, as a multiple of those of pre-training
LONGER = 6
ASKED = 6
COLUMN = "Matthews correlation"
# the code of a user who has just been given the folder
JUDGE = """
import json
import sys
import sublayers
from transformers import pipeline
folder, asked = sys.argv[1:]
judge = pipeline("text-classification", model=folder)
for statement, label in json.loads(asked):
    (answer,) = judge(statement)
    print(f"{answer['label']:>12} {answer['score']:.2f}, is {judge.model.config.id2label[label]:>12}: {statement}")
"""


def show_bert(folder: Path, steps: int, console: Console) -> list[Row]:
    """Pre-train and fine-tune a model in an empty folder, print what it reaches, and let it judge."""
    folder.mkdir(parents=True)
    statements = acceptable_statements()
    for split, rows in statements.items():
        rows.to_json(folder / f"{split}.jsonl")
    files = [f"--{split}_file={folder / split}.jsonl" for split in statements]
    console.rule("pre-training: par_bert")
    pretrained, tuned = folder / "par_bert-pretrained", folder / "par_bert"
    own = [f"--max_steps={steps}", f"--output_dir={pretrained}"]
    words = cli.run(["pretrain", *PRETRAINING.split(), *own])["eval_masked_accuracy"]
    console.rule("does Python accept this statement? par_bert")
    own = [f"--model_name_or_path={pretrained}", f"--max_steps={LONGER * steps}", f"--output_dir={tuned}"]
    correlation = cli.run(["glue", *FINE_TUNING.split(), *files, *own])["cola"]["best"]["median"]
    model = AutoModelForSequenceClassification.from_pretrained(tuned / "cola")
    row = {"model": "par_bert", "order": model.config.sublayer_order, "parameters": f"{model.num_parameters()}"}
    row |= {"masked words right (%)": f"{100 * words:.1f}", COLUMN: f"{correlation:.2f}"}
    shown = [row, {"model": "always the same answer", COLUMN: "0.00"}]
    console.rule("held-out files of the standard library")
    console.print(table(shown), soft_wrap=True, markup=False, highlight=False)
    console.rule("a new process judges some of them with the saved par_bert")
    asked = [(row["sentence"], row["label"]) for row in statements["validation"].take(ASKED)]
    run(JUDGE, str(tuned / "cola"), json.dumps(asked))
    return shown

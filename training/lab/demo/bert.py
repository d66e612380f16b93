"""The demo's second part: pre-train small BERTs, and let them judge which statements Python accepts."""

import json
from pathlib import Path

from rich.console import Console
from transformers import AutoModelForSequenceClassification

from sublayers.configuration.sublayer_order import macaron, sandwich
from sublayers.training import cli
from sublayers.training.data.statements import acceptable_statements
from sublayers.training.lab.demo.stranger import run
from sublayers.training.results import Row, table

# few steps need larger weights to begin with, and norms before the sublayers, which Macaron BERT has anyway
MODELS = {
    "par_bert": f"--sublayer_order {sandwich(4, 2)} --intermediate_size 256 --norm_position pre --final_norm true "
    "--embedding_norm false --scale_embedding true",
    "macaron_bert": f"--sublayer_order {macaron(4)} --intermediate_size 128 --position_embedding_type learned",
}
PRETRAINING = """
    --objective mlm+nsp --hidden_size 64 --num_attention_heads 4 --initializer_range 0.1 --dropout 0
    --attention_dropout 0 --vocab_size 2000 --block_size 64 --max_position_embeddings 128
    --per_device_train_batch_size 32 --per_device_eval_batch_size 32 --max_eval_samples 10 --learning_rate 3e-3
    --eval_strategy no --save_strategy no --logging_steps 0.2
"""
FINE_TUNING = "--task_name cola --learning_rate 2e-3 --max_length 48 --logging_steps 0.2"
# fine-tuning takes so many times the steps of pre-training
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


def show_berts(names: list[str], folder: Path, steps: int, console: Console) -> list[Row]:
    """Pre-train and fine-tune models in an empty folder, print what they reach, and ask par_bert."""
    folder.mkdir(parents=True)
    statements = acceptable_statements()
    for split, rows in statements.items():
        rows.to_json(folder / f"{split}.jsonl")
    files = [f"--{split}_file={folder / split}.jsonl" for split in statements]
    rows = []
    same_tokenizer: list[str] = []
    for name in names:
        console.rule(f"pre-training: {name}")
        pretrained, tuned = folder / f"{name}-pretrained", folder / name
        own = [f"--model_type={name}", f"--max_steps={steps}", f"--output_dir={pretrained}", *same_tokenizer]
        words = cli.run(["pretrain", *PRETRAINING.split(), *MODELS[name].split(), *own])["eval_masked_accuracy"]
        same_tokenizer = [f"--tokenizer_name_or_path={pretrained}"]
        console.rule(f"does Python accept this statement? {name}")
        own = [f"--model_name_or_path={pretrained}", f"--max_steps={LONGER * steps}", f"--output_dir={tuned}"]
        found = cli.run(["glue", *FINE_TUNING.split(), *files, *own])["cola"]
        correlation = found["best"]["median"]
        model = AutoModelForSequenceClassification.from_pretrained(tuned / "cola")
        row = {"model": name, "order": model.config.sublayer_order, "parameters": f"{model.num_parameters()}"}
        row |= {"masked words right (%)": f"{100 * words:.1f}", COLUMN: f"{correlation:.2f}"}
        rows.append(row)
    rows.append({"model": "always the same answer", COLUMN: "0.00"})
    console.rule("held-out files of the standard library")
    console.print(table(rows), soft_wrap=True, markup=False, highlight=False)
    console.rule("a new process judges some of them with the saved par_bert")
    asked = [(row["sentence"], row["label"]) for row in statements["validation"].take(ASKED)]
    run(JUDGE, str(folder / "par_bert" / "cola"), json.dumps(asked))
    return rows

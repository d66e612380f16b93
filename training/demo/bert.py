"""The demo's second part: pre-train small BERTs, and let them judge whether documentation belongs to a function."""

import json
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from transformers import AutoModelForSequenceClassification

from sublayers.configuration.sublayer_order import macaron, sandwich
from sublayers.training import cli
from sublayers.training.data.functions import documentation_pairs
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
FINE_TUNING = "--task_name mrpc --learning_rate 2e-3 --max_length 80 --logging_steps 0.2"
ASKED = 6
# what a user types who has just been given the folder
JUDGE = """
import json
import sys
import sublayers
from transformers import pipeline
folder, pairs = sys.argv[1:]
judge = pipeline("text-classification", model=folder)
for documentation, code, label in json.loads(pairs):
    answer = judge({"text": documentation, "text_pair": code}, truncation=True, max_length=80)
    print(f"{documentation!r} of {code.splitlines()[0]!r}:", answer["label"], f"{answer['score']:.2f}, is", label)
"""


def show_berts(names: list[str], folder: Path, steps: int, console: Console) -> list[Row]:
    """Pre-train and fine-tune models in an empty folder, print what they reach, and ask par_bert."""
    folder.mkdir(parents=True)
    pairs = documentation_pairs()
    for split, rows in pairs.items():
        rows.to_json(folder / f"{split}.jsonl")
    files = [f"--{split}_file={folder / split}.jsonl" for split in pairs]
    rows = []
    labels = pairs["validation"]["label"]
    majority = max(labels.count(0), labels.count(1)) / len(labels)
    same_tokenizer: list[str] = []
    for name in names:
        console.rule(f"pre-training: {name}")
        pretrained, tuned = folder / f"{name}-pretrained", folder / name
        own = [f"--model_type={name}", f"--max_steps={steps}", f"--output_dir={pretrained}", *same_tokenizer]
        words = cli.run(["pretrain", *PRETRAINING.split(), *MODELS[name].split(), *own])["eval_masked_accuracy"]
        same_tokenizer = [f"--tokenizer_name_or_path={pretrained}"]
        console.rule(f"does this documentation belong to this function? {name}")
        own = [f"--model_name_or_path={pretrained}", f"--max_steps={2 * steps}", f"--output_dir={tuned}"]
        found = cli.run(["glue", *FINE_TUNING.split(), *files, *own])["mrpc"]
        accuracy = found["best"]["runs"][0]["validation"]["accuracy"]
        model = AutoModelForSequenceClassification.from_pretrained(tuned / "mrpc")
        row = {"model": name, "order": model.config.sublayer_order, "parameters": f"{model.num_parameters()}"}
        row |= {"masked words right (%)": f"{100 * words:.1f}", "pairs right (%)": f"{100 * accuracy:.1f}"}
        rows.append(row)
    rows.append({"model": "always the majority", "pairs right (%)": f"{100 * majority:.1f}"})
    console.rule("held-out functions of the standard library")
    console.print(table(rows), soft_wrap=True, markup=False, highlight=False)
    console.rule("a new process judges some of them with the saved par_bert")
    asked = [(row["sentence1"], row["sentence2"], row["label"]) for row in pairs["validation"].take(ASKED)]
    folders = [str(folder / "par_bert" / "mrpc"), json.dumps(asked)]
    subprocess.run([sys.executable, "-c", JUDGE, *folders], check=True)
    return rows

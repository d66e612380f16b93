"""The demo's first part: two small language models, read byte by byte."""

import math
from pathlib import Path

import numpy as np
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer

from sublayers.configuration.order import interleaved, sandwich
from sublayers.training import cli
from sublayers.training.data.corpus import Text, standard_library
from sublayers.training.data.language_modeling import token_stream
from sublayers.training.lab.demo.stranger import run
from sublayers.training.results import Row, table

LAYERS = 3
EVALUATION_FILES = 30

# the paper's architecture with few and small sublayers, over bytes, which need no large embedding: two cores then see
# enough text in a minute
FLAGS = f"""
    --hidden_size 128 --intermediate_size 512 --num_attention_heads 4 --dropout 0 --attention_dropout 0
    --activation_dropout 0 --tokenizer_model byte --block_size 128 --per_device_train_batch_size 8 --learning_rate 4e-3
    --logging_steps 0.1 --eval_strategy no --save_strategy no
    --max_eval_samples {EVALUATION_FILES} --per_device_eval_batch_size 32
"""
PROMPT = "    def __init__(self, "
# the code of a user who has just been given the folder
COMPLETE = """
import sys
import sublayers
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline, set_seed
folder, prompt = sys.argv[1:]
model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
set_seed(0)
generate = pipeline("text-generation", model=model, tokenizer=tokenizer)
print(generate(prompt, max_new_tokens=100, do_sample=True, temperature=0.8)[0]["generated_text"])
"""


def bigram_perplexity(train: np.ndarray, validation: np.ndarray, vocab_size: int, discount: float = 0.75) -> float:
    """Perplexity of a bigram model with absolute discounting, which backs off to smoothed token frequencies.

    Args:
        train: tokens to count, (number of tokens,).
        validation: tokens to predict from the one before each, (number of tokens,).
        vocab_size: number of different tokens.
        discount: what every count gives to the tokens that never followed.
    """
    unigram = (np.bincount(train, minlength=vocab_size) + 1) / (len(train) + vocab_size)
    pairs, pair_counts = np.unique(train[:-1].astype(np.int64) * vocab_size + train[1:], return_counts=True)
    firsts = np.bincount(train[:-1], minlength=vocab_size)
    followers = np.bincount(pairs // vocab_size, minlength=vocab_size)
    before, after = validation[:-1].astype(np.int64), validation[1:]
    wanted = before * vocab_size + after
    at = np.searchsorted(pairs, wanted).clip(max=len(pairs) - 1)
    seen = np.where(pairs[at] == wanted, pair_counts[at] - discount, 0.0)
    total = np.maximum(firsts[before], 1)
    # a token that was never followed by anything leaves all to the frequencies
    backed_off = np.where(firsts[before] > 0, discount * followers[before] / total, 1.0)
    return float(np.exp(-np.log(seen / total + backed_off * unigram[after]).mean()))


def show_language_models(folder: Path, steps: int, console: Console) -> list[Row]:
    """Train a sandwich and its interleaved twin, print what they reach beside a bigram model, and complete a text."""
    rows = []
    for name, order in {"sandwich": sandwich(LAYERS, 1), "interleaved": interleaved(LAYERS)}.items():
        console.rule(f"training: {name}, {order}")
        flags = [f"--sublayer_order={order}", f"--output_dir={folder / name}", f"--max_steps={steps}"]
        metrics = cli.run(["pretrain", *FLAGS.split(), *flags])
        model = AutoModelForCausalLM.from_pretrained(folder / name)
        row = {"model": name, "order": order, "parameters": f"{model.num_parameters()}"}
        row |= {
            "perplexity": f"{metrics['eval_perplexity']:.2f}",
            "bits per byte": f"{metrics['eval_bits_per_byte']:.2f}",
        }
        rows.append(row | {"training (s)": f"{metrics['train_runtime']:.0f}"})
    tokenizer = AutoTokenizer.from_pretrained(folder / "sandwich")
    texts = {split: Text(rows) for split, rows in standard_library().items()}
    texts["validation"] = texts["validation"].take(EVALUATION_FILES)
    train, validation = (np.concatenate(list(token_stream(texts[name], tokenizer))) for name in ("train", "validation"))
    perplexity = bigram_perplexity(train, validation, len(tokenizer))
    row = {"model": "bigram, counted on the whole corpus", "parameters": f"{len(np.unique(train)) ** 2}"}
    rows.append(row | {"perplexity": f"{perplexity:.2f}", "bits per byte": f"{math.log2(perplexity):.2f}"})
    console.rule("held-out files of the standard library, byte by byte")
    console.print(table(rows), soft_wrap=True, markup=False, highlight=False)
    console.rule("a new process completes a text with the saved sandwich")
    run(COMPLETE, str(folder / "sandwich"), PROMPT)
    return rows

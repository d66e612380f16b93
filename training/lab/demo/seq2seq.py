"""The demo's third part: two small encoder-decoders learn to write functions from their documentation."""

import json
from pathlib import Path

from rich.console import Console
from transformers import AutoModelForSeq2SeqLM

from sublayers.configuration.sublayer_order import interleaved, macaron, sandwich
from sublayers.training import cli
from sublayers.training.lab.demo.stranger import run
from sublayers.training.results import Row, table

MODELS = {
    "macaron_seq2seq": (macaron(2), macaron(2, decoder=True), 256),
    "sandwich_seq2seq": (interleaved(2), sandwich(2, 1, decoder=True), 512),
}
FLAGS = """
    --hidden_size 128 --num_attention_heads 4 --norm_position pre --final_norm true --initializer_range 0.1
    --dropout 0.1 --attention_dropout 0 --activation_dropout 0 --vocab_size 2000 --max_source_length 64
    --max_target_length 160 --max_tokens 1024 --learning_rate 3e-3 --eval_strategy no --save_strategy no
    --logging_steps 0.2 --num_beams 4 --max_predict_samples 60 --do_train --do_predict --report_to none
"""
ASKED = ["Return the number of items in the queue.", "Return True if the file is open.", "Close the connection."]
# the code of a user who has just been given the folder
WRITE = """
import json
import sys
import sublayers.pipelines
from transformers import pipeline
folder, asked = sys.argv[1:]
write = pipeline("text2text-generation", model=folder)
for documentation, found in zip(json.loads(asked), write(json.loads(asked))):
    print(f"# {documentation}", found["generated_text"], sep="\\n", end="\\n\\n")
"""


def show_encoder_decoders(folder: Path, steps: int, console: Console) -> list[Row]:
    """Train both models in an empty folder, print what they reach, and let one of them write functions."""
    rows = []
    for name, (encoder, decoder, width) in MODELS.items():
        console.rule(f"learning to write functions: {name}, {encoder}:{decoder}")
        own = {
            "model_type": name,
            "encoder_sublayer_order": encoder,
            "decoder_sublayer_order": decoder,
            "intermediate_size": width,
            "max_steps": steps,
            "output_dir": folder / name,
        }
        found = cli.run(["seq2seq", *FLAGS.split(), *(f"--{flag}={value}" for flag, value in own.items())])
        parameters = AutoModelForSeq2SeqLM.from_pretrained(folder / name).num_parameters()
        row = {"model": name, "encoder order": encoder, "decoder order": decoder, "parameters": f"{parameters}"}
        row |= {
            "sentence BLEU": f"{found['test_sentence_bleu']:.1f}",
            "valid code (%)": f"{found['test_valid_code']:.0f}",
        }
        rows.append(row | {"training (s)": f"{found['train_runtime']:.0f}"})
    console.rule("functions of the standard library in files that were held out")
    console.print(table(rows), soft_wrap=True, markup=False, highlight=False)
    console.rule("a new process writes functions with the saved macaron_seq2seq")
    run(WRITE, str(folder / "macaron_seq2seq"), json.dumps(ASKED))
    return rows

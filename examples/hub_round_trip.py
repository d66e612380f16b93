"""Publish a model and load it without this package: `python examples/hub_round_trip.py you/my-bert`, logged in."""

import subprocess
import sys

from sublayers import PARBertConfig, PARBertForSequenceClassification
from sublayers.training.data.tokenizers import train_tokenizer

name = sys.argv[1]
tokenizer = train_tokenizer(["Ada wrote the first program."], "wordpiece", 200)
config = PARBertConfig(
    sublayer_order="s6f6", vocab_size=len(tokenizer), hidden_size=64, intermediate_size=256, num_attention_heads=4
)
PARBertForSequenceClassification(config).save_pretrained("runs/published")
tokenizer.save_pretrained("runs/published")
# weights, tokenizer, code, licence and card, in one commit
subprocess.run([sys.executable, "-m", "sublayers", "push", "runs/published", name], check=True)

elsewhere = f"""
import sys
sys.modules["sublayers"] = None  # as if it were not installed
from transformers import pipeline
print(pipeline("text-classification", {name!r}, trust_remote_code=True)("Who wrote it?"))
"""
subprocess.run([sys.executable, "-c", elsewhere], check=True)

"""What each of two processes runs: `sublayers distill` for lists of flags; it keeps which texts were asked for."""

import json
import sys
from functools import partial
from pathlib import Path

import torch
from accelerate import PartialState

from sublayers import PARBertConfig
from sublayers.training.commands.distill import main as distill
from sublayers.training.distill import student
from sublayers.training.distill.answers import AnsweredTexts

answer, asked = AnsweredTexts._answer, []


def record(texts, indices):
    if texts.file.parent.name == "train":
        asked.extend(indices)
    answer(texts, indices)


AnsweredTexts._answer = record
# students with random weights have no dropout, either
student.PARBertConfig = partial(PARBertConfig, dropout=0.0, attention_dropout=0.0, activation_dropout=0.0)
for flags in json.loads(sys.argv[1]):
    asked.clear()
    distill(flags)
    folder = Path(flags[-1])
    (folder / f"asked_{PartialState().process_index}.json").write_text(json.dumps(asked))
torch.distributed.destroy_process_group()

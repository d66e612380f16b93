"""What each of two processes runs: `sublayers distill` for lists of flags; it keeps which texts were asked for."""

import json
import sys
from functools import partial
from pathlib import Path

import torch
from accelerate import PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType

from sublayers import PARBertConfig
from sublayers.training.commands.distill import main as distill
from sublayers.training.distill import student
from sublayers.training.distill.answers import AnsweredTexts
from sublayers.training.distill.sharding import is_sharded

IS_SHARDED = "--fsdp" in sys.argv[1]
answer, asked = AnsweredTexts._answer, []


def record(texts, indices):
    models = texts.objective.teacher.model, texts.objective.student
    for model in models:
        # by its layers
        assert (sum(is_sharded(module) for module in model.modules()) > 2) == is_sharded(model) == IS_SHARDED
    if texts.folder.name == "train":
        asked.extend(indices)
    answer(texts, indices)


def shard(state, *args, init=AcceleratorState.__init__, **kwargs):
    if PartialState().distributed_type == DistributedType.MULTI_CPU:
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    init(state, *args, **kwargs)


AnsweredTexts._answer = record
if IS_SHARDED:
    # Accelerate shards models on accelerators alone, though all that it calls runs on CPUs, too
    AcceleratorState.__init__ = shard
# students with random weights have no dropout, either
student.PARBertConfig = partial(PARBertConfig, dropout=0.0, attention_dropout=0.0, activation_dropout=0.0)
for flags in json.loads(sys.argv[1]):
    asked.clear()
    distill(flags)
    folder = Path(flags[-1])
    (folder / f"asked_{PartialState().process_index}.json").write_text(json.dumps(asked))
torch.distributed.destroy_process_group()

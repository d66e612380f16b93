"""How long models take as graphs of other programs."""

import copy
import importlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from sublayers.configuration.sublayer_order import expand
from sublayers.modeling.modeling_reordered_bert import ReorderedBertModel
from sublayers.modeling.modeling_sublayers import SublayersPreTrainedModel
from sublayers.training.metrics.order_times import REPEATS
from sublayers.training.metrics.timing import Call, time_in_turn
from sublayers.training.serve.encoders import Finished
from sublayers.training.serve.export import RUNTIMES
from sublayers.training.serve.program import draw_inputs, trace


def time_graphs(
    model: SublayersPreTrainedModel,
    orders: Sequence[str],
    runtime: str,
    rows: int,
    length: int,
    reads_first: bool,
    seconds: float,
) -> list[float]:
    """Measure how long a model takes as a graph in each of some orders, embeddings and head included: milliseconds.

    Args:
        model: whose sizes they have; weights are random, since times do not depend on them.
        orders: of its one stack.
        runtime: one of `RUNTIMES`.
        rows: texts that run at once.
        length: tokens of each.
        reads_first: whether a body computes the state of its first token alone, as for pooling by that.
        seconds: after which no new round begins.
    """
    program: Any = importlib.import_module(f"sublayers.training.serve.{RUNTIMES[runtime]}")
    calls: dict[Any, Call] = {}
    with TemporaryDirectory() as place:
        for number, order in enumerate(tqdm(orders, "Writing graphs", leave=False)):
            config: Any = copy.deepcopy(model.config)
            config.sublayer_order = order
            if "w" not in expand(order):
                config.attention_window = config.local_rope_theta = None
            other: Any = type(model)(config).eval()
            run = other.forward
            if reads_first and isinstance(other, ReorderedBertModel):
                run = other.forward_first_token
            file = Path(place, str(number), program.FILE)
            file.parent.mkdir()
            program.write(trace(Finished(other, run, lambda outputs, inputs: outputs)), file)
            inputs = {name: tensor.numpy() for name, tensor in draw_inputs(other, rows, length).items()}
            inputs["attention_mask"] = np.ones((rows, length), int)
            calls[order] = partial(program.load(file, torch.get_num_threads()), inputs)
        times = time_in_turn(f"timing, {rows}x{length}, {runtime}", calls, REPEATS, torch.device("cpu"), seconds)
    return [median(times[order]) for order in orders]

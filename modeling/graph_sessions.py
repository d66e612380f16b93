"""Graphs that a runtime opens, as functions from inputs to outputs."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np

Batch: TypeAlias = dict[str, np.ndarray]
Run: TypeAlias = Callable[[Batch], Batch]

# rows run together whose lengths differ by less than this share, since each run has its cost
LEAST_PADDING = 0.2


def open_onnx(file: Path, threads: int | None = None) -> Run:
    """Read a graph of ONNX Runtime as a function from inputs to outputs, both by name."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # 0 is all cores
    options.intra_op_num_threads = threads or 0
    # threads that wait for the next call would take the cores from whatever runs between calls
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # on processors without VNNI, sums of products of 8 bits would overflow
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(file, options)
    names = [output.name for output in session.get_outputs()]
    return by_length(lambda batch: dict(zip(names, session.run(None, batch), strict=True)))


def open_openvino(file: Path, threads: int | None = None) -> Run:
    """Read a graph of OpenVINO as a function from inputs to outputs, both by name."""
    import openvino

    # some processors would compute in 16 bits; 0 is all cores
    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads or 0}
    graph = openvino.Core().compile_model(file, "CPU", options)
    names = [output.any_name for output in graph.outputs]
    return by_length(lambda batch: dict(zip(names, graph(batch).values(), strict=True)))


def by_length(run: Run) -> Run:
    """Let a graph run rows of like lengths together, for graphs compute padding: the same outputs, sooner.

    Outputs of padding are zero then. Batches with padding on the left or in between, and those of encoder-decoders, run
    as a whole.
    """

    def run_groups(batch: Batch) -> Batch:
        mask = batch.get("attention_mask", np.ones((1, 1)))
        lengths = mask.sum(-1)
        is_padded_right = mask.ndim == 2 and bool((mask[:, 1:] <= mask[:, :-1]).all())
        groups = [*_groups(lengths)] if is_padded_right and "decoder_input_ids" not in batch else []
        if len(groups) < 2:
            return run(batch)
        widths = [max(1, int(lengths[rows[0]])) for rows in groups]
        parts = [
            run({name: np.ascontiguousarray(array[rows, :width]) for name, array in batch.items()})
            for rows, width in zip(groups, widths, strict=True)
        ]
        outputs = {}
        for name, first in parts[0].items():
            # no other axis is as long as the rows of each group are
            of_tokens = all(part[name].shape[1:2] == (width,) for part, width in zip(parts, widths, strict=True))
            shape = [len(mask), mask.shape[1], *first.shape[2:]] if of_tokens else [len(mask), *first.shape[1:]]
            outputs[name] = np.zeros(shape, first.dtype)
            for rows, width, part in zip(groups, widths, parts, strict=True):
                outputs[name][(rows, slice(width)) if of_tokens else rows] = part[name]
        return outputs

    return run_groups


def _groups(lengths: np.ndarray) -> Iterator[np.ndarray]:
    """Divide rows of these lengths into groups of about the same, longer ones first."""
    order = np.argsort(-lengths, kind="stable")
    while len(order):
        near = lengths[order] > (1 - LEAST_PADDING) * lengths[order[0]]
        # a length of zero is near none
        near[0] = True
        yield order[near]
        order = order[~near]

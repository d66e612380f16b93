"""A model's folder as a graph that runs in ONNX Runtime, where neither torch nor this package is installed."""

import inspect
import logging
import shutil
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from jinja2 import Template
from onnxruntime.quantization import quant_pre_process, quantize_dynamic
from transformers import AutoTokenizer

from sublayers.configuration.configuration_recurrent_lm import RecurrentLMConfig
from sublayers.configuration.configuration_sublayers import SublayersConfig
from sublayers.hub.loading import load
from sublayers.hub.model_card import LOSS_CURVE, RUN, Graph, write_card
from sublayers.hub.self_contained import copy_tokenizers
from sublayers.modeling.modeling_sublayers import SublayersPreTrainedModel
from sublayers.training.data.corpus import standard_library
from sublayers.training.data.files import check_file, reading
from sublayers.training.folders import refuse_to_overwrite, whole_folder
from sublayers.training.trainers.export import read_model

MODEL = "model.onnx"
USAGE = Path(__file__).with_name("onnx_usage_template.md")
# those that a model has not are left out
INPUTS = ("input_ids", "attention_mask", "token_type_ids", "decoder_input_ids", "decoder_attention_mask")
TOLERANCE = 1e-4
# rows and tokens: what is exported, and what is checked then
EXPORTED, CHECKED = (2, 8), ((1, 1), (3, 7), (4, 32))
# where positions have no end, a text has one
LONGEST = 512
# lines of the standard library that stand for somebody's texts
NUMBER_OF_LINES = 64


def export_onnx(source: Path, destination: Path, int8: bool = False, texts: Path | None = None) -> dict[str, Any]:
    """Write a model as a graph for ONNX Runtime into a new folder, with configuration, tokenizer and card.

    The graph takes any number of rows and tokens, padded on either side, and computes what follows the last attention
    only where the head reads. It has neither cache nor memory.

    Args:
        source: folder of a trained model.
        destination: a new folder.
        int8: store the weights of linear maps in 8 bits, and compute these maps in integers.
        texts: a file with a text in each line, on which the error of int8 is measured; by default, lines of the
            standard library.

    Returns:
        The graph's `bytes`, its largest `difference` to torch and, for int8, how far its outputs on `texts` texts are
        from those in 32 bits: `mean`, `largest` and, for a classifier, the share with the `same_label`, else None.

    Raises:
        FileExistsError: the destination holds files.
        OSError, ValueError: see `read_model`; there is no such file of texts, or no text in it; there is no tokenizer,
            which texts need; or the graph's outputs are not those of torch.
    """
    refuse_to_overwrite(destination)
    model = read_model(source).float().eval()
    lines = _read_lines(texts) if int8 else []
    with whole_folder(destination) as folder, TemporaryDirectory() as full, _quiet():
        model.config.auto_map = {}
        model.config.save_pretrained(folder)
        copy_tokenizers(model, folder)
        has_tokenizer = (folder / "tokenizer_config.json").exists()
        if int8 and not has_tokenizer:
            raise ValueError(f"{source} has no tokenizer, without which int8 cannot be measured; save it there")
        for name in (RUN, LOSS_CURVE):
            if (source / name).exists():
                shutil.copyfile(source / name, folder / name)

        graph = (Path(full) if int8 else folder) / MODEL
        names = _write_graph(model, graph)
        session = onnxruntime.InferenceSession(graph)
        report: dict[str, Any] = {"difference": _check(session, model)}
        if int8:
            _quantize(graph, folder / MODEL)
            quantized = onnxruntime.InferenceSession(folder / MODEL)
            batches = _tokenize(lines, load(AutoTokenizer, folder), session, model.config)
            report |= _error(session, quantized, batches)
        report["bytes"] = sum(file.stat().st_size for file in folder.glob(f"{MODEL}*"))
        ranks = {given.name: len(given.shape) for given in session.get_inputs()}
        usage = Template(USAGE.read_text(encoding="utf-8")).render(
            name=destination.resolve().name,
            ranks=ranks,
            outputs=names,
            config=model.config,
            has_tokenizer=has_tokenizer,
            is_decoder="token_type_ids" not in ranks,
            has_memory=isinstance(model.config, RecurrentLMConfig),
            int8=int8,
            own_texts=texts is not None,
            **report,
        )
        write_card(folder, destination.resolve().name, ["onnx"], Graph(usage, model.num_parameters()))
    return report


def _write_graph(model: SublayersPreTrainedModel, file: Path) -> list[str]:
    """Export for any batch and length, and return the names of the outputs."""
    # what a folder's configuration asks for is no output of a graph
    for name in ("use_cache", "output_hidden_states", "output_attentions"):
        setattr(model.config, name, False)
    batch = _inputs(model, *EXPORTED)
    names = [*_run(model, batch)]
    shapes = {name: _dimensions(name, tensor.ndim, model.config) for name, tensor in batch.items()}
    program: Any = torch.onnx.export(
        model, (), kwargs=batch, dynamic_shapes=shapes, output_names=names, dynamo=True, verbose=False
    )
    # these tell where on this machine the code is
    for node in program.model.graph.all_nodes():
        node.metadata_props.clear()
    program.save(file)
    return names


def _dimensions(name: str, rank: int, config: Any) -> dict[int, Any]:
    """Name the axes of an input; the last one is as long as there are positions."""
    length = "decoder_length" if name.startswith("decoder") else "length"
    names = ["batch", "choices"][: rank - 1]
    limit = config.max_position_embeddings or None
    return {axis: torch.export.Dim(name) for axis, name in enumerate(names)} | {
        rank - 1: torch.export.Dim(length, max=limit)
    }


def _inputs(model: SublayersPreTrainedModel, rows: int, length: int) -> dict[str, torch.Tensor]:
    """Draw tokens of which a third of the rows is padded on its left, and a third on its right."""
    config, generator = model.config, torch.Generator().manual_seed(0)
    length = min(length, config.max_position_embeddings or length)
    vocabulary = min(config.vocab_size, getattr(config, "encoder_vocab_size", None) or config.vocab_size)
    choices = (2,) if type(model).__name__.endswith("ForMultipleChoice") else ()
    accepted = inspect.signature(model.forward).parameters
    batch = {}
    for name in [name for name in INPUTS if name in accepted]:
        shape = (rows, *choices, max(1, length - 2) if name.startswith("decoder") else length)
        if name.endswith("mask"):
            batch[name] = torch.ones(shape, dtype=torch.long)
            batch[name][0::3, ..., : shape[-1] // 3] = 0
            batch[name][1::3, ..., shape[-1] - shape[-1] // 3 :] = 0
        else:
            number = config.type_vocab_size if name == "token_type_ids" else vocabulary
            batch[name] = torch.randint(number, shape, generator=generator)
    return batch


def _run(model: SublayersPreTrainedModel, batch: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    with torch.no_grad():
        return {name: output.numpy() for name, output in model(**batch).items()}


def _check(session: onnxruntime.InferenceSession, model: SublayersPreTrainedModel) -> float:
    """Return the largest difference between a graph and its model, relative for outputs above 1."""
    largest = 0.0
    for rows, length in CHECKED:
        batch = _inputs(model, rows, length)
        given = session.run(None, {name: tensor.numpy() for name, tensor in batch.items()})
        for output, wanted in zip(given, _run(model, batch).values(), strict=True):
            difference = np.abs(output - wanted) / np.maximum(1, np.abs(wanted))
            # one that is no number stays one
            largest = float(np.maximum(largest, difference.max()))
    if not largest <= TOLERANCE:
        raise ValueError(
            f"outputs of the graph differ from the model's by {largest:.2g}, more than {TOLERANCE}, so that it is not "
            "kept; serve the model with torch"
        )
    return largest


def _quantize(full: Path, file: Path) -> None:
    is_large = full.with_name(f"{MODEL}.data").exists()
    folded = full.with_name(f"folded_{MODEL}")
    # what is transposed while it runs, such as a head that is tied to the embeddings, would stay in 32 bits
    quant_pre_process(full, folded, skip_symbolic_shape=True, skip_onnx_shape=True, save_as_external_data=is_large)
    graph = onnx.load(folded)
    # these are not the shapes that the quantiser infers, after which it gives up
    del graph.graph.value_info[:]
    quantize_dynamic(graph, file, ["MatMul"], per_channel=True, use_external_data_format=is_large)


def _read_lines(texts: Path | None) -> list[str]:
    if texts is None:
        documents = standard_library()["validation"].take(NUMBER_OF_LINES)["text"]
        # of each document, what its first line says that is no mark of a comment
        return [next(line for line in text.splitlines() if line.strip("\"'# ")) for text in documents if text.strip()]
    check_file(texts, [".txt"])
    with reading(str(texts)):
        lines = [line for line in texts.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not lines:
        raise ValueError(f"{texts} holds no text; give a file with a text in each line")
    return lines


def _tokenize(
    lines: list[str], tokenizer: Any, session: onnxruntime.InferenceSession, config: SublayersConfig
) -> Iterator[dict[str, np.ndarray]]:
    """Turn each text into the inputs of a graph; a decoder has read nothing yet."""
    longest = config.max_position_embeddings or LONGEST
    for line in lines:
        batch = {**tokenizer([line], truncation=True, max_length=longest, return_token_type_ids=True)}
        if config.is_encoder_decoder:
            batch |= {"decoder_input_ids": [[config.decoder_start_token_id]], "decoder_attention_mask": [[1]]}
        if batch["input_ids"][0]:
            yield {
                given.name: np.array(batch[given.name], dtype=np.int64).reshape((1,) * (len(given.shape) - 1) + (-1,))
                for given in session.get_inputs()
            }


def _error(
    full: onnxruntime.InferenceSession,
    quantized: onnxruntime.InferenceSession,
    batches: Iterable[dict[str, np.ndarray]],
) -> dict[str, Any]:
    """Compare the outputs of two graphs."""
    differences, same = [], []
    for batch in batches:
        outputs = [session.run(None, batch) for session in (full, quantized)]
        pairs = [*zip(*outputs, strict=True)]
        differences.append(np.concatenate([np.abs(first - second).ravel() for first, second in pairs]))
        first, second = pairs[0]
        if first.ndim == 2 and first.shape[1] > 1 and full.get_outputs()[0].name == "logits":
            same.append(first.argmax() == second.argmax())
    if not differences:
        raise ValueError("the tokenizer finds no token in the texts; give others with --texts")
    return {
        "texts": len(differences),
        "mean": float(np.mean([each.mean() for each in differences])),
        "largest": float(max(each.max() for each in differences)),
        "same_label": float(np.mean(same)) if same else None,
    }


@contextmanager
def _quiet() -> Iterator[None]:
    # torch's exporter and the quantiser say what does not concern whoever exports a model
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)

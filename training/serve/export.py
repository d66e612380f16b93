"""A model's folder as one for another program, which needs neither this package nor the model's code."""

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from jinja2 import Template
from transformers import AutoTokenizer

from sublayers.configuration.configuration_recurrent_lm import RecurrentLMConfig
from sublayers.convert.graphs.program import check, draw_inputs, longest, output_names, runtime as runtime_of, trace
from sublayers.hub.folder import copy_record
from sublayers.hub.loading import load
from sublayers.hub.model_card import Graph, write_card
from sublayers.hub.self_contained import copy_tokenizers
from sublayers.modeling.graph_sessions import Batch, Run
from sublayers.training.data.corpus import standard_library
from sublayers.training.data.files import check_file, reading
from sublayers.training.folders import refuse_to_overwrite, whole_folder
from sublayers.training.serve.encoders import (
    EMBEDDING,
    SCORES,
    finish,
    name_known_classes,
    write_encoder,
    write_tokenizer,
)
from sublayers.training.trainers.export import read_model

USAGE = Path(__file__).with_name("usage_template.md")
TAGS = {"onnx": "onnx", "openvino": "openvino", "torch_export": "torch.export"}
# where other programs look for a graph in a folder, in 32 bits and in 8
FILES = {
    "onnx": ("onnx/model.onnx", "onnx/model_quantized.onnx"),
    "openvino": ("openvino/openvino_model.xml", "openvino/openvino_model.xml"),
    "torch_export": ("model.pt2",),
}
# tokens of a text for models without a limit of positions
LONGEST = 512
# lines of the standard library that stand for somebody's texts
NUMBER_OF_LINES = 64


def export_graph(
    source: Path,
    destination: Path,
    form: str,
    int8: bool = False,
    texts: Path | None = None,
    calibration_file: Path | None = None,
) -> dict[str, Any]:
    """Write a model as a graph for another program into a new folder, with configuration, tokenizer and card.

    The graph takes any number of rows and tokens, padded on either side, and computes what follows the last attention
    only where the head reads. It has neither cache nor memory. Of a SentenceTransformer or CrossEncoder, the graph does
    what `finish` tells, and the folder is one that these open.

    Args:
        source: folder of a trained model.
        destination: a new folder.
        form: one of `program.RUNTIMES`.
        int8: compute linear maps in integers of 8 bits, and store embeddings so.
        texts: a file with a text in each line, on which the error of int8 is measured; by default, lines of the
            standard library.
        calibration_file: a file with a text in each line, on which int8 measures once how large the inputs of linear
            maps are; by default, that is measured while it runs.

    Returns:
        The graph's `file` and `bytes`, its largest `difference` to torch and, for int8, how far its outputs on `texts`
        texts are from those in 32 bits: `mean`, `largest`, for a classifier the share with the `same_label`, and for
        sentence embeddings mean and smallest `cosine`, else None.

    Raises:
        FileExistsError: the destination holds files.
        OSError, ValueError: see `read_model` and `finish`; there is no such file of texts, or no text in it; there is
            no tokenizer, which texts need; or the graph's outputs are not those of torch.
    """
    runtime = runtime_of(form)
    refuse_to_overwrite(destination)
    model = read_model(source).float().eval()
    finished, encoder = finish(model, source)
    is_encoder = encoder is not None or not (model.can_generate() or model.config.is_encoder_decoder)
    lines = read_lines(texts) if int8 else []
    known = read_lines(calibration_file) if calibration_file else None
    with whole_folder(destination) as folder, TemporaryDirectory() as place:
        model.config.auto_map, model.config.graphs, model.graphs = {}, {}, None
        model.config.save_pretrained(folder)
        copy_tokenizers(model, folder)
        tokenizer = load(AutoTokenizer, folder) if (folder / "tokenizer_config.json").exists() else None
        max_length = longest(model.config) or LONGEST
        if encoder and tokenizer:
            max_length = min(max_length, encoder.max_length or tokenizer.model_max_length)
            write_tokenizer(source, folder, max_length)
        if int8 and not tokenizer:
            raise ValueError(f"{source} has no tokenizer, without which int8 cannot be measured; save it there")
        copy_record(source, folder)
        program = trace(finished)
        file = folder / FILES[form][int8]
        full = Path(place) / runtime.FILE if int8 else file
        file.parent.mkdir(exist_ok=True)
        runtime.write(program, full)
        run = runtime.load(full)
        report: dict[str, Any] = {"file": FILES[form][int8], "difference": check(run, finished)}
        ranks = {name: tensor.ndim for name, tensor in draw_inputs(finished, 1, 1).items()}
        if int8:
            batches = _tokenize(lines, tokenizer, ranks, model.config, max_length)
            calibrating = _tokenize(known, tokenizer, ranks, model.config, max_length) if known else None
            runtime.quantize(full, file, calibrating)
            report |= _error(run, runtime.load(file), batches)
        report["bytes"] = sum(part.stat().st_size for part in file.parent.glob(f"{file.stem}.*"))
        if encoder:
            write_encoder(folder, encoder, max_length)
        usage = Template(USAGE.read_text(encoding="utf-8")).render(
            name=destination.resolve().name,
            form=form,
            ranks=ranks,
            outputs=output_names(program),
            config=model.config,
            tokenizer=tokenizer,
            encoder=encoder,
            is_encoder=is_encoder,
            max_length=max_length,
            has_memory=isinstance(model.config, RecurrentLMConfig),
            int8=int8,
            own_texts=texts is not None,
            calibrated=calibration_file is not None,
            **report,
        )
        write_card(folder, destination.resolve().name, [TAGS[form]], Graph(usage, model.num_parameters()))
        if is_encoder:
            # the card names ours
            name_known_classes(folder, model.config, encoder)
    return report


def read_lines(texts: Path | None) -> list[str]:
    """Read the texts of a file, one in each line; None: lines of the standard library. Raises what `reading` raises."""
    if texts is None:
        documents = standard_library()["validation"].take(NUMBER_OF_LINES)["text"]
        # the first line of each document without its comment marks
        return [next(line for line in text.splitlines() if line.strip("\"'# ")) for text in documents if text.strip()]
    check_file(texts, [".txt"])
    with reading(str(texts)):
        lines = [line for line in texts.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not lines:
        raise ValueError(f"{texts} holds no text; give a file with a text in each line")
    return lines


def _tokenize(lines: list[str], tokenizer: Any, ranks: dict[str, int], config: Any, max_length: int) -> list[Batch]:
    """Turn each text into the inputs of a graph; a decoder has read nothing yet."""
    batches = []
    for line in lines:
        batch = {**tokenizer([line], truncation=True, max_length=max_length, return_token_type_ids=True)}
        if config.is_encoder_decoder:
            batch |= {"decoder_input_ids": [[config.decoder_start_token_id]], "decoder_attention_mask": [[1]]}
        if batch["input_ids"][0]:
            batches.append(
                {
                    name: np.array(batch[name], dtype=np.int64).reshape((1,) * (rank - 1) + (-1,))
                    for name, rank in ranks.items()
                }
            )
    if not batches:
        raise ValueError(f"the tokenizer finds no token in the texts, of which the first is {lines[0]!r}; give others")
    return batches


def _error(full: Run, quantized: Run, batches: Iterable[Batch]) -> dict[str, Any]:
    """Compare the outputs of two graphs; where there are embeddings or scores of texts, these alone."""
    differences, same, cosines = [], [], []
    for batch in batches:
        first, second = full(batch), quantized(batch)
        read = [name for name in (EMBEDDING, SCORES) if name in first] or [*first]
        differences.append(np.concatenate([np.abs(first[name] - second[name]).ravel() for name in read]))
        name, scores = next(iter(first.items()))
        if name == "logits" and scores.ndim == 2 and scores.shape[1] > 1:
            same.append(scores.argmax() == second[name].argmax())
        if EMBEDDING in first:
            one, other = first[EMBEDDING][0], second[EMBEDDING][0]
            cosines.append(one @ other / np.linalg.norm(one) / np.linalg.norm(other))
    return {
        "texts": len(differences),
        "mean": float(np.mean([each.mean() for each in differences])),
        "largest": float(max(each.max() for each in differences)),
        "same_label": float(np.mean(same)) if same else None,
        "cosine": (float(np.mean(cosines)), float(min(cosines))) if cosines else None,
    }

"""The bench of encoders on texts runs the same model in every runtime."""

import argparse

import numpy as np
import pytest
import torch
from tiny_teachers import TEXTS, make_sentence_encoder, save_teacher, write_texts

from sublayers.training.cli import main
from sublayers.training.lab.bench import encode
from sublayers.training.results import read

pytestmark = pytest.mark.slow


def arguments(folder, texts, **flags):
    given = {"model": str(folder), "texts": texts, "number": 7, "batch_sizes": [1, 3], "graphs": [], "threads": None}
    return argparse.Namespace(**given | {"device": torch.device("cpu")} | flags)


@pytest.mark.parametrize("is_reranker", [False, True])
@pytest.mark.full
def test_every_runtime_gives_the_same_answers(is_reranker, tmp_path):
    save_teacher(tmp_path / "model", labels=1 if is_reranker else None)
    if not is_reranker:
        make_sentence_encoder(tmp_path / "model")
    file = write_texts(tmp_path / "lines.txt")
    args = arguments(tmp_path / "model", [file], graphs=["onnx", "openvino"])
    tasks = {task.name: task for task in encode.comparison(args).tasks}
    assert [*tasks] == ["7 of lines, 1 at once", "7 of lines, 3 at once"]
    for task in tasks.values():
        found = {name: np.asarray(call()) for name, call in task.calls.items()}
        for name, values in found.items():
            np.testing.assert_allclose(values, found[encode.THEIRS], atol=2e-5, err_msg=name)


def test_a_file_for_a_reranker_begins_with_its_query(tmp_path):
    file = write_texts(tmp_path / "lines.txt", TEXTS[:3])
    assert encode.read(file, 9, is_reranker=True) == [(TEXTS[0], TEXTS[1]), (TEXTS[0], TEXTS[2])]
    assert encode.read(file, 2, is_reranker=False) == TEXTS[:2]
    with pytest.raises(ValueError, match=r"lines.txt has too few texts"):
        encode.read(write_texts(file, TEXTS[:1]), 9, is_reranker=True)


def test_the_command_writes_ratios(tmp_path, capsys):
    save_teacher(tmp_path / "model")
    make_sentence_encoder(tmp_path / "model")
    file = write_texts(tmp_path / "lines.txt")
    flags = ["--number", "3", "--repeats", "1", "--batch_sizes", "2", "--csv", str(tmp_path / "found.csv")]
    main(["bench", "encode", str(tmp_path / "model"), "--texts", str(file), *flags])
    assert encode.REMARK in capsys.readouterr().out
    theirs, ours, _ = read(tmp_path / "found.csv")
    assert (theirs["model"], ours["model"]) == (encode.THEIRS, encode.OURS)
    assert float(ours["3 of lines 2 at once (ms) ratio to sentence-transformers"]) > 0

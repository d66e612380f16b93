"""The bench of encoders on texts runs the same model in every runtime."""

import argparse
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from tiny_teachers import TEXTS, make_sentence_encoder, save_teacher, write_texts
from torch import nn

from sublayers.modeling.row_parts import has_hooks
from sublayers.training.cli import main
from sublayers.training.lab.bench import encode, encode_others
from sublayers.training.results import read

pytestmark = pytest.mark.slow


def arguments(folder, texts, **flags):
    given = {"model": str(folder), "texts": texts, "number": 7, "batch_sizes": [1, 3], "graphs": [], "threads": None}
    given |= {"parts": False, "fastembed": None, "gguf": None}
    return argparse.Namespace(**given | {"device": torch.device("cpu")} | flags)


@pytest.mark.parametrize("is_reranker", [False, True])
@pytest.mark.full
def test_every_runtime_gives_the_same_answers(is_reranker, tmp_path):
    save_teacher(tmp_path / "model", labels=1 if is_reranker else None)
    if not is_reranker:
        make_sentence_encoder(tmp_path / "model")
    file = write_texts(tmp_path / "lines.txt")
    args = arguments(tmp_path / "model", [file], graphs=["onnx", "openvino", "auto"], parts=True)
    tasks = {task.name: task for task in encode.comparison(args).tasks}
    assert [*tasks] == ["7 of lines, 1 at once", "7 of lines, 3 at once"]
    for task in tasks.values():
        found = {name: np.asarray(call()) for name, call in task.calls.items()}
        for name, values in found.items():
            np.testing.assert_allclose(values, found[encode.THEIRS], atol=2e-5, err_msg=name)


@pytest.mark.parametrize("mode", ["mean", "cls", "lasttoken", None])
def test_each_part_computes_more_than_the_one_before(mode, tmp_path):
    save_teacher(tmp_path / "model", labels=None if mode else 1)
    if mode:
        make_sentence_encoder(tmp_path / "model", mode)
    model, is_reranker = encode.open_model(str(tmp_path / "model"), "cpu")
    parts = encode_others.parts_of(model)
    # BERT has no tail that is read at its last token
    reads_all = [encode_others.ALL_READ] * (mode == "cls")
    assert [*parts] == [
        *(encode_others.TORCH_MAPS, encode_others.WHOLE_BATCHES, *reads_all, encode_others.ALL_COMPUTED)
    ]
    computed = []
    for name, part in parts.items():
        maps = [module for module in part[0].model.modules() if isinstance(module, nn.Linear)]
        assert not any("forward" in vars(module) for module in maps)
        states = []
        body = part[0].model.base_model
        # which makes large batches run at once
        assert has_hooks(body) == (name != encode_others.TORCH_MAPS)
        body.layers[-1].mixer.register_forward_hook(lambda module, given, output, to=states: to.append(output[0]))
        inputs = [(TEXTS[0], text) for text in TEXTS[:4]] if is_reranker else TEXTS[:4]
        (part.predict if is_reranker else part.encode)(inputs, batch_size=4)
        computed.append(sum(each.numel() for each in states) // body.config.hidden_size)
    tokens = model.tokenizer(inputs, padding=True, return_tensors="pt")["attention_mask"]
    read = 4 if mode in ("cls", None) else int(tokens.sum())
    assert computed == [read, read, *[int(tokens.sum())] * len(reads_all), tokens.numel()]


def test_parts_are_of_models_of_transformers(tmp_path):
    save_teacher(tmp_path / "model")
    make_sentence_encoder(tmp_path / "model")
    ours = encode.optimize(encode.open_model(str(tmp_path / "model"), "cpu")[0])
    with pytest.raises(ValueError, match="is one of this package already; leave out --parts"):
        encode_others.parts_of(ours)


def others(tmp_path, monkeypatch, scale=1.0, **flags):
    """Measure beside runtimes that give the encoder's own embeddings, and list what they are given."""
    save_teacher(tmp_path / "model")
    make_sentence_encoder(tmp_path / "model")
    held, asked = SentenceTransformer(str(tmp_path / "model"), device="cpu"), []

    class Runtime:
        def __init__(self, name, **options):
            asked.append((name, options))

        def embed(self, texts, batch_size=None):
            asked.append((len(texts), batch_size))
            return iter(scale * held.encode(texts))

    for name, known in {"fastembed": "TextEmbedding", "llama_cpp": "Llama"}.items():
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        setattr(sys.modules[name], known, Runtime)
    args = arguments(tmp_path / "model", [write_texts(tmp_path / "lines.txt")], **flags)
    return encode.comparison(args), asked


def test_other_runtimes_get_the_same_texts(tmp_path, monkeypatch):
    comparison, asked = others(tmp_path, monkeypatch, fastembed="its/name", gguf="model.gguf")
    threads = torch.get_num_threads()
    assert asked[0] == ("its/name", {"threads": threads})
    sizes = dict.fromkeys(("n_ctx", "n_batch", "n_ubatch"), 512)
    both = {"n_threads": threads, "n_threads_batch": threads}
    assert asked[1] == ("model.gguf", {"embedding": True, "verbose": False, **both, **sizes})
    _, task = comparison.tasks
    asked.clear()
    found = {name: np.asarray(call()) for name, call in task.calls.items()}
    assert asked == [(7, 3), *[(number, None) for number in (3, 3, 1)]]
    for name in (encode_others.FASTEMBED, encode_others.LLAMA):
        np.testing.assert_allclose(found[name], found[encode.THEIRS], atol=1e-5)
    assert [*comparison.peers] == [*task.calls]


@pytest.mark.parametrize("flags", [{"fastembed": "another"}, {"gguf": "another.gguf"}])
def test_another_model_is_no_peer(flags, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"gives other embeddings \(a cosine of -1.00\); name the same model"):
        others(tmp_path, monkeypatch, -1.0, **flags)


def test_other_runtimes_score_no_pairs(tmp_path):
    with pytest.raises(ValueError, match="leave --fastembed and --gguf out"):
        encode_others.others_of(SimpleNamespace(fastembed="a", gguf=None), None, is_reranker=True, texts=[])


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

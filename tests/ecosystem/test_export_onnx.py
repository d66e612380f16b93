import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from common import tokens
from families import FAMILIES, build
from hub_metadata import metadata_errors
from transformers import (
    AutoModelForMultipleChoice,
    AutoModelForNextSentencePrediction,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

from sublayers import PARBertForSequenceClassification
from sublayers.configuration.sublayer_cost import flops
from sublayers.training import cli
from sublayers.training.data.tokenizers import train_tokenizer

pytest.importorskip("onnxscript")
onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from sublayers.training.serve import onnx_runtime, program  # noqa: E402
from sublayers.training.serve.export import export_graph  # noqa: E402

pytestmark = pytest.mark.slow

HEADS = [(family, None) for family in FAMILIES] + [
    ("sandwich_lm", AutoModelForSequenceClassification),
    ("par_transformer_xl", AutoModelForSequenceClassification),
    ("par_bert", AutoModelForPreTraining),
    ("par_bert", AutoModelForNextSentencePrediction),
    ("par_bert", AutoModelForTokenClassification),
    ("par_bert", AutoModelForQuestionAnswering),
    ("par_bert", AutoModelForMultipleChoice),
    ("macaron_bert", AutoModelForSequenceClassification),
]
TEXTS = ["Ada wrote the first program.", "the program", "Who wrote it?"]


def save(model, folder, **options):
    model.save_pretrained(folder, **options)
    train_tokenizer(TEXTS[:1], "wordpiece", 60).save_pretrained(folder)
    return model


def a_batch(session, rows, length):
    """Inputs of a graph, by its own description: the first row is padded on its left, the last on its right."""
    batch = {}
    for given in session.get_inputs():
        assert given.type == "tensor(int64)"
        shape = (rows, *[2] * (len(given.shape) - 2), length + 3 * given.name.startswith("decoder"))
        batch[given.name] = tokens(int(np.prod(shape[:-1])), shape[-1]).view(shape)
        if given.name == "token_type_ids":
            batch[given.name] %= 2
        elif given.name.endswith("mask"):
            batch[given.name] = torch.ones(shape, dtype=torch.long)
            batch[given.name][0, ..., :4] = batch[given.name][-1, ..., -3:] = 0
    return batch


def snippet(folder):
    [code] = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    return code


@pytest.mark.parametrize(("family", "head"), HEADS)
def test_gives_eagers_outputs_at_any_size_padded_on_either_side(family, head, tmp_path, monkeypatch):
    model = save(build(family, head), tmp_path / "trained")
    export_graph(tmp_path / "trained", tmp_path / "served", "onnx")
    session = onnxruntime.InferenceSession(tmp_path / "served" / "model.onnx")
    inputs = {"input_ids", "attention_mask"}
    if model.config.is_encoder_decoder:
        inputs |= {"decoder_input_ids", "decoder_attention_mask"}
    elif family.endswith("bert"):
        inputs |= {"token_type_ids"}
    assert {given.name for given in session.get_inputs()} == inputs
    names = [output.name for output in session.get_outputs()]
    for rows, length in ((2, 8), (3, 9), (5, 20), (4, 61), (2, 5)):
        batch = a_batch(session, rows, length)
        with torch.no_grad():
            wanted = model(**batch, use_cache=False)
        assert names == [*wanted]
        given = session.run(None, {name: tensor.numpy() for name, tensor in batch.items()})
        for name, output in zip(names, given, strict=True):
            torch.testing.assert_close(torch.from_numpy(output), wanted[name], atol=1e-4, rtol=1e-4)
    # the way to load it that the card tells
    monkeypatch.chdir(tmp_path)
    told = {}
    exec(compile(snippet(tmp_path / "served"), "README.md", "exec"), told)
    assert told.keys() > {*names}
    assert metadata_errors((tmp_path / "served" / "README.md").read_text()) == ([], [])


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """A folder that brings its code along and has numbers of 16 bits, as a graph of 32 and of 8 bits."""
    root = tmp_path_factory.mktemp("classifier")
    torch.manual_seed(0)
    model = build("par_bert", AutoModelForSequenceClassification, sublayer_order="sf5", num_labels=3)
    save(model.to(torch.bfloat16), root / "trained", self_contained=True)
    (root / "trained" / "run.json").write_text(json.dumps({"command": "sublayers glue", "seeds": [7]}))
    (root / "texts.txt").write_text("\n".join([*TEXTS, "", ""]))
    export_graph(root / "trained", root / "served", "onnx")
    return root


def in_eager(root, text):
    model = PARBertForSequenceClassification.from_pretrained(root / "trained", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(root / "trained")
    with torch.no_grad():
        return model(**tokenizer([text], return_tensors="pt")).logits


def test_the_card_tells_how_to_load_it_where_this_package_is_not(classifier):
    code = snippet(classifier / "served") + "import sys\nassert 'sublayers' not in sys.modules\nprint(logits.tolist())"
    done = subprocess.run([sys.executable, "-c", code], cwd=classifier, capture_output=True, text=True, check=True)
    assert np.allclose(json.loads(done.stdout.splitlines()[-1]), in_eager(classifier, "A text."), atol=1e-4)


def test_the_folder_holds_what_serving_needs_and_nothing_of_this_machine(classifier):
    names = {path.name for path in (classifier / "served").iterdir()}
    tokenizer = {"tokenizer.json", "tokenizer_config.json"}
    assert names == {"model.onnx", "config.json", "README.md", "run.json"} | tokenizer
    assert not json.loads((classifier / "served" / "config.json").read_text()).get("auto_map")
    card = (classifier / "served" / "README.md").read_text()
    assert "encoder `sf5`, 6 sublayers" in card
    assert "25,651 parameters" in card
    assert "sublayers glue" in card
    # the exporter notes for each node where its code stands
    assert str(Path(cli.__file__).parents[1]).encode() not in (classifier / "served" / "model.onnx").read_bytes()


def graph_flops(file, batch):
    """Count the multiplications of matrices in a graph: two FLOPs for each multiply-add."""
    graph = onnx.load(file)
    assert not {"Attention", "Conv", "Einsum"} & {node.op_type for node in graph.graph.node}
    products = [node for node in graph.graph.node if node.op_type in ("MatMul", "Gemm")]
    matrices = {}
    # the shapes of what a run computes
    del graph.graph.output[:]
    for node in products:
        for name in (node.input[0], node.output[0]):
            matrices[name] = onnx.ValueInfoProto(name=name)
    graph.graph.output.extend(matrices.values())
    session = onnxruntime.InferenceSession(graph.SerializeToString())
    found = dict(zip(matrices, session.run(None, batch), strict=True))
    return sum(2 * found[node.output[0]].size * found[node.input[0]].shape[-1] for node in products)


@pytest.mark.parametrize("length", [7, 40])
def test_of_a_long_tail_one_position_is_computed(classifier, length):
    hidden, intermediate, labels = 32, 48, 3
    batch = {name: np.ones((1, length), dtype=np.int64) for name in ("input_ids", "attention_mask", "token_type_ids")}
    head = 2 * hidden * hidden + 2 * hidden * labels
    counted = graph_flops(classifier / "served" / "model.onnx", batch)
    assert counted == flops("sf5", hidden, intermediate, length, read=1) + head


def test_what_8_bits_change_is_measured_on_texts(classifier, capsys, tmp_path):
    flags = ["--format", "onnx", "--int8", "--texts", str(classifier / "texts.txt")]
    cli.main(["export", str(classifier / "trained"), str(tmp_path / "served"), *flags])
    printed = capsys.readouterr().out
    tokenizer = AutoTokenizer.from_pretrained(classifier / "trained")
    full, small = (onnxruntime.InferenceSession(folder / "served" / "model.onnx") for folder in (classifier, tmp_path))
    logits = [
        [session.run(None, dict(tokenizer([text], return_tensors="np")))[0][0] for session in (full, small)]
        for text in TEXTS
    ]
    differences = np.abs([first - second for first, second in logits])
    same = np.mean([first.argmax() == second.argmax() for first, second in logits])
    assert 0 < differences.mean() < 0.5
    mean, largest = f"{differences.mean():.2g}", f"{differences.max():.2g}"
    assert f"of 3 texts by {mean} on average and {largest} at most; {same:.1%} have the same label" in printed
    card = (tmp_path / "served" / "README.md").read_text()
    assert f"on 3 texts of its users, mean and largest | {mean}, {largest} |" in card
    assert f"the same label | {100 * same:.1f} %" in card
    # every linear map: 4 of attention, 2 of each feed-forward, the pooler and the classifier
    operations = [node.op_type for node in onnx.load(tmp_path / "served" / "model.onnx").graph.node]
    assert operations.count("MatMulInteger") == 4 + 2 * 5 + 2
    sizes = [(folder / "served" / "model.onnx").stat().st_size for folder in (tmp_path, classifier)]
    assert f"model.onnx, {sizes[0] / 1e6:.1f} MB" in printed
    assert sizes[0] < sizes[1]


def test_8_bits_are_measured_on_the_standard_library_where_there_are_no_texts(tmp_path):
    # so many words that the exporter does not store their table transposed, too
    model = save(build("macaron_seq2seq", vocab_size=12000), tmp_path / "trained")
    report = export_graph(tmp_path / "trained", tmp_path / "served", "onnx", int8=True)
    assert report["texts"] > 40
    assert 0 < report["mean"] < report["largest"] < np.inf
    # words are no labels
    assert report["same_label"] is None
    operations = [node.op_type for node in onnx.load(tmp_path / "served" / "model.onnx").graph.node]
    assert operations.count("MatMulInteger") == sum(isinstance(module, torch.nn.Linear) for module in model.modules())
    assert "lines of the Python standard library" in (tmp_path / "served" / "README.md").read_text()


def test_a_graph_that_differs_is_not_kept(classifier, monkeypatch, tmp_path):
    run = program.run_model
    monkeypatch.setattr(program, "run_model", lambda *given: {name: y + 2e-4 for name, y in run(*given).items()})
    with pytest.raises(ValueError, match=r"differ from the model's by 0\.0002, more than 0\.0001"):
        export_graph(classifier / "trained", tmp_path / "served", "onnx")
    assert not [*tmp_path.iterdir()]


def test_what_is_compared_has_other_sizes_and_padding_on_either_side(classifier, monkeypatch):
    graph = onnx_runtime.load(classifier / "served" / "model.onnx")
    model = PARBertForSequenceClassification.from_pretrained(classifier / "trained", dtype=torch.float32)
    assert program.check(graph, model) < 1e-4
    run = program.run_model
    for is_such in (
        lambda mask: mask.shape[0] > 2,
        lambda mask: mask.shape == (1, 1),
        lambda mask: mask.shape[1] > 8,
        lambda mask: not mask[:, 0].all(),
        lambda mask: not mask[:, -1].all(),
    ):

        def wrong(model, batch, is_such=is_such):
            return {name: y + 2e-4 * bool(is_such(batch["attention_mask"])) for name, y in run(model, batch).items()}

        monkeypatch.setattr(program, "run_model", wrong)
        with pytest.raises(ValueError, match="differ from the model's"):
            program.check(graph, model)


def test_8_bits_without_texts_or_tokenizer_are_refused(classifier, tmp_path):
    build("par_bert").save_pretrained(tmp_path / "trained")
    for texts, said in ((None, "has no tokenizer"), ("empty.txt", "holds no text"), ("none.txt", "there is no file")):
        (tmp_path / "empty.txt").write_text("\n \n")
        with pytest.raises((ValueError, OSError), match=said):
            export_graph(tmp_path / "trained", tmp_path / "served", "onnx", True, texts and tmp_path / texts)
    assert not (tmp_path / "served").exists()


def test_without_a_tokenizer_the_card_shows_numbers(tmp_path, monkeypatch):
    build("macaron_seq2seq").save_pretrained(tmp_path / "trained")
    export_graph(tmp_path / "trained", tmp_path / "served", "onnx")
    monkeypatch.chdir(tmp_path)
    told = {}
    exec(compile(snippet(tmp_path / "served"), "README.md", "exec"), told)
    assert told["logits"].shape == (1, 1, 61)

"""Models in memory run in graphs of other runtimes, where these give the answers of torch."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import sentence_transformers
import torch
from huggingface_hub import constants
from launched import python
from scipy.stats import spearmanr
from sentence_transformers.sentence_transformer import modules
from tiny_encoders import PAIRS, SOURCES, TEXTS, save
from tiny_graphs import openvino  # noqa: F401
from transformers import AutoModelForMultipleChoice, AutoTokenizer, pipeline

from sublayers import optimize, restore
from sublayers.convert.graphs import attach
from sublayers.modeling import graph_sessions
from sublayers.modeling.graph_sessions import Graphs

pytestmark = pytest.mark.slow

FORMS = ["onnx", "openvino"]
MANY = [f"{text} {'and a text ' * (i % 4)}" for i, text in enumerate(TEXTS * 8)]


@pytest.fixture
def ran(monkeypatch):
    """The names of the graphs that have run."""
    names, route = [], Graphs.route
    monkeypatch.setattr(Graphs, "route", lambda self, *size: names.append(route(self, *size)) or names[-1])
    return names


def encoder_of(folder, pooling="mean", name="BertModel"):
    if not (folder / "config.json").exists():
        torch.manual_seed(0)
        save(folder, name, **SOURCES.get(name, {}))
    body = modules.Transformer(str(folder))
    parts = [body, modules.Pooling(body.get_embedding_dimension(), pooling), modules.Normalize()]
    return sentence_transformers.SentenceTransformer(modules=parts, device="cpu", prompts={"query": "another text: "})


@pytest.fixture
def encoder(tmp_path):
    return encoder_of(tmp_path / "encoder")


@pytest.mark.representatives(3)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("name", "pooling"), [("BertModel", "mean"), ("BertModel", "cls"), ("Qwen3Model", "lasttoken")]
)
def test_a_sentence_encoder_embeds_alike(form, name, pooling, tmp_path, ran):
    encoder = encoder_of(tmp_path / "encoder", pooling, name)
    ours = optimize(encoder, runtime=form)
    for options in ({}, {"prompt_name": "query"}, {"batch_size": 1}):
        expected = encoder.encode(TEXTS, **options)
        np.testing.assert_allclose(ours.encode(TEXTS, **options), expected, atol=1e-5)
    assert {*ran} == {form}
    assert restore(ours)[0].model is encoder[0].model


def test_other_encoders_and_pipelines_answer_alike(tmp_path, ran):
    folder = save(tmp_path / "reranker", "BertForSequenceClassification", num_labels=1)
    reranker = sentence_transformers.CrossEncoder(str(folder), device="cpu")
    assert optimize(reranker, runtime="onnx").predict(PAIRS) == pytest.approx(reranker.predict(PAIRS), abs=1e-5)
    sparse = sentence_transformers.SparseEncoder(str(save(tmp_path / "sparse", "BertForMaskedLM")), device="cpu")
    found, expected = (
        each.encode(TEXTS, convert_to_sparse_tensor=False) for each in (optimize(sparse, runtime="onnx"), sparse)
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    vectors = sentence_transformers.MultiVectorEncoder(str(save(tmp_path / "vectors", "BertModel")), device="cpu")
    for found, expected in zip(
        optimize(vectors, runtime="onnx").encode_document(TEXTS), vectors.encode_document(TEXTS), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    answers = pipeline("token-classification", str(save(tmp_path / "tokens", "BertForTokenClassification")))
    before = len(ran)
    ours, theirs = optimize(answers, runtime="onnx")(TEXTS), answers(TEXTS)
    assert [[token["entity"] for token in row] for row in ours] == [
        [token["entity"] for token in row] for row in theirs
    ]
    assert 3 <= before < len(ran)


def test_the_model_itself_runs_where_graphs_cannot(encoder, ran):
    ours = optimize(encoder, runtime="onnx")
    model = ours[0].model
    batch = dict(ours.tokenizer(TEXTS, padding=True, return_tensors="pt"))
    with torch.no_grad():
        model(**batch)
        assert ran == ["onnx"]
        assert len(model(**batch, output_hidden_states=True).hidden_states) > 2
        assert isinstance(model(**batch, return_dict=False), tuple)
        model(inputs_embeds=model.get_input_embeddings()(batch["input_ids"]), attention_mask=batch["attention_mask"])
        with pytest.raises(TypeError, match="unexpected"):
            model(**batch, past_key_valuess=1)
    model(**batch).last_hidden_state.sum().backward()
    model.train()(**batch)
    assert ran == ["onnx"]


@pytest.mark.parametrize("copies", [False, True])
def test_weights_that_change_are_seen(encoder, copies, ran):
    ours = optimize(encoder, runtime="onnx")
    ours.encode(TEXTS)
    ours = copy.deepcopy(ours) if copies else ours
    before = ours.encode(TEXTS)
    assert ran == ["onnx"] * 2
    state = {name: tensor + 0.1 for name, tensor in ours[0].model.state_dict().items()}
    ours[0].model.load_state_dict(state)
    assert np.abs(ours.encode(TEXTS) - before).max() > 1e-3
    assert ran == ["onnx"] * 2


STRANGER = """
import sys
sys.modules["sublayers"] = None
from sentence_transformers import SentenceTransformer
encoder = SentenceTransformer(sys.argv[1], trust_remote_code=True, device="cpu")
graphs = encoder[0].model.graphs
print(sorted(graphs.runs) if graphs else None, *encoder.encode(["yes, a short text, no"])[0])
"""


@pytest.mark.representatives(1)
@pytest.mark.parametrize("form", FORMS)
def test_a_stranger_opens_the_saved_folder_with_its_graph(form, encoder, tmp_path):
    optimize(encoder, runtime=form).save_pretrained(str(tmp_path / "saved"))
    printed = python("-c", STRANGER, tmp_path / "saved", home=tmp_path)
    opened, *numbers = printed.splitlines()[-1].split("] ")[-1:]
    assert f"['{form}'" in printed
    found = np.array(opened.split(), dtype=np.float32)
    np.testing.assert_allclose(found, encoder.encode(TEXTS[:1])[0], atol=1e-5)
    assert not numbers


def test_a_folder_of_another_machine_or_without_its_runtime_runs_in_torch(encoder, tmp_path, monkeypatch, caplog):
    folder = tmp_path / "saved"
    optimize(encoder, runtime="onnx").save_pretrained(str(folder))
    config = json.loads((folder / "config.json").read_text())
    monkeypatch.setattr(graph_sessions.logger, "propagate", True)

    def opened(said, **changes):
        caplog.clear()
        (folder / "config.json").write_text(json.dumps(config | {"graphs": config["graphs"] | changes}))
        ours = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
        np.testing.assert_allclose(ours.encode(TEXTS), encoder.encode(TEXTS), atol=1e-5)
        assert ours[0].model.graphs is None
        assert said in caplog.text

    opened("were chosen on another machine", machine="another machine")
    opened("", architecture="PARBertForMaskedLM")
    with pytest.raises(ValueError, match=r"names graphs outside of it: \.\./model\.onnx; put copies into it"):
        opened("", files={"onnx": ["../model.onnx"]})
    monkeypatch.setitem(graph_sessions.OPENERS, "onnx", lambda *args: (_ for _ in ()).throw(ImportError("no onnx")))
    opened("cannot be opened here (no onnx)")


def test_what_has_trained_is_saved_without_graphs(encoder, tmp_path):
    ours = optimize(encoder, runtime="onnx")
    with torch.no_grad():
        ours[0].model.get_input_embeddings().weight.add_(1)
    ours.save_pretrained(str(tmp_path / "saved"))
    assert not json.loads((tmp_path / "saved" / "config.json").read_text())["graphs"]
    assert not (tmp_path / "saved" / "onnx").exists()


def test_weights_that_change_before_the_first_call_are_seen(encoder, tmp_path, ran):
    optimize(encoder, runtime="onnx").save_pretrained(str(tmp_path / "saved"))
    ours = sentence_transformers.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    with torch.no_grad():
        ours[0].model.get_input_embeddings().weight.add_(1)
    # the card that sentence-transformers saved has examples
    ran.clear()
    ours.encode(TEXTS)
    assert ran == []


@pytest.fixture
def hurried(monkeypatch):
    """Measure some calls only."""
    monkeypatch.setattr(attach, "BUDGET", 0.3)
    monkeypatch.setattr(attach, "CALLS", 2)


def test_what_is_fastest_is_chosen_once(encoder, hurried, monkeypatch, capsys):
    measured = []

    def times(calls, batches, seconds):
        measured.append([batch["input_ids"].shape for batch in batches])
        fastest = "torch" if len(batches[0]["input_ids"]) > 1 else "openvino"
        return dict.fromkeys(calls, 2e-9) | {fastest: 1e-9}

    monkeypatch.setattr(attach, "_times", times)
    ours = optimize(encoder, verify=MANY, runtime="auto")
    graphs = ours[0].model.graphs
    assert {(rows, name) for rows, _, name in graphs.routes if rows in (1, 8)} == {(1, "openvino"), (8, "torch")}
    # as texts have several lengths, so have few rows; a runtime may be slower where they change
    assert all(len({*shapes}) > 1 for shapes in measured if shapes[0][0] == 1)
    assert [*graphs.files] == ["openvino"]
    assert graphs.route(1, 5) == "openvino"
    assert graphs.route(30, 5) == "torch"
    said = capsys.readouterr().out
    assert "kept in" in said
    number = len(measured)
    again = optimize(encoder, verify=MANY, runtime="auto")[0].model.graphs
    assert again.description()["files"] == graphs.description()["files"]
    assert len(measured) == number
    kept = max(Path(constants.HF_HOME, "sublayers").rglob("auto *.json"), key=lambda path: path.stat().st_mtime)
    kept.write_text(json.dumps(json.loads(kept.read_text()) | {"machine": "another machine"}))
    capsys.readouterr()
    optimize(encoder, verify=MANY, runtime="auto")
    assert "was chosen on another machine, so it is measured again here" in capsys.readouterr().out
    assert len(measured) > number
    number = len(measured)
    # texts of other lengths
    optimize(encoder, runtime="auto")
    assert len(measured) > number


def test_a_runtime_that_is_missing_or_a_model_without_graph(encoder, monkeypatch, hurried, capsys):
    def refuse(*_):
        raise ModuleNotFoundError("openvino is not installed; pip install it")

    monkeypatch.setattr(attach, "require", refuse)
    encoder[0].model.get_input_embeddings().weight.data += 1
    with pytest.raises(ModuleNotFoundError, match="openvino is not installed"):
        optimize(encoder, runtime="openvino")
    np.testing.assert_allclose(optimize(encoder, runtime="auto").encode(TEXTS), encoder.encode(TEXTS), atol=1e-5)
    assert "onnx is left out: openvino is not installed" in capsys.readouterr().out
    monkeypatch.setattr(attach, "require", lambda extra: None)
    monkeypatch.setattr(attach, "trace", lambda model: 1 / 0)
    encoder[0].model.get_input_embeddings().weight.data += 1
    with pytest.raises(ValueError, match=r"PARBertModel cannot be a graph of onnx: division by zero; use .*torch"):
        optimize(encoder, runtime="onnx")
    for _ in range(2):
        # which is not kept
        optimize(encoder, runtime="auto")
        assert "division by zero; it is left out" in capsys.readouterr().out


def test_8_bits_are_compared_on_texts(encoder, capsys, ran):
    ours = optimize(encoder, verify=MANY, runtime="onnx", int8=True)
    said = capsys.readouterr().out
    assert f"onnx int8 beside 32 bits, {len(MANY)} texts: cosine " in said
    found, expected = ours.encode(MANY), encoder.encode(MANY)
    assert 1e-5 < np.abs(found - expected).max() < 0.1
    assert {*ran} == {"onnx int8"}
    with pytest.raises(
        ValueError, match=r"onnx int8 agrees with 32 bits by [01]\.\d* only, less than least_agreement=2;"
    ):
        optimize(encoder, verify=MANY, runtime="onnx", int8=True, least_agreement=2)
    with pytest.raises(ValueError, match="3 are too few; give verify=20 or more of them"):
        optimize(encoder, verify=TEXTS, runtime="onnx", int8=True)


def test_agreement_is_that_of_a_naive_loop():
    generator = np.random.default_rng(0)
    first = generator.normal(size=(30, 5))
    second = first + generator.normal(size=first.shape)
    found = attach.agreement(first, second)

    def similar(vectors, i, j):
        return vectors[i] @ vectors[j] / np.linalg.norm(vectors[i]) / np.linalg.norm(vectors[j])

    cosines = [similar([a, b], 0, 1) for a, b in zip(first, second, strict=True)]
    pairs = [(i, j) for i in range(30) for j in range(i)]
    ranks = spearmanr(*([similar(vectors, i, j) for i, j in pairs] for vectors in (first, second))).statistic
    near = [
        [{*sorted({*range(30)} - {i}, key=lambda j: -similar(vectors, i, j))[:10]} for i in range(30)]
        for vectors in (first, second)
    ]
    same = np.mean([len(a & b) / 10 for a, b in zip(*near, strict=True)])
    expected = {"cosine": np.mean(cosines), "least cosine": min(cosines), "rank correlation": ranks, "same ten": same}
    assert found == pytest.approx(expected)
    scores = attach.agreement(first[:, :1], second[:, :1])
    assert scores["rank correlation"] == pytest.approx(spearmanr(first[:, 0], second[:, 0]).statistic)
    assert scores["same ten"] == len({*first[:, 0].argsort()[-10:]} & {*second[:, 0].argsort()[-10:]}) / 10
    tied = first[:, :1].round()
    assert attach.agreement(tied, second[:, :1])["rank correlation"] == pytest.approx(spearmanr(tied, second[:, :1])[0])


@pytest.mark.parametrize(("flags", "lacks"), [("avx2", True), ("avx2 avx512_vnni", False), ("avx_vnni", False)])
def test_processors_without_vnni_are_known(flags, lacks, monkeypatch):
    monkeypatch.setattr(attach.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(Path, "exists", lambda self: True)
    monkeypatch.setattr(Path, "read_text", lambda self, **options: f"flags\t\t: {flags}\n")
    assert attach._lacks_vnni() == lacks


def test_what_does_not_fit_is_refused(encoder, tmp_path):
    with pytest.raises(ValueError, match="runtime 'tensorrt' is none of torch, onnx, openvino, auto"):
        optimize(encoder, runtime="tensorrt")
    with pytest.raises(ValueError, match="int8 is for graphs; give runtime="):
        optimize(encoder, int8=True)
    choice = AutoModelForMultipleChoice.from_pretrained(save(tmp_path / "choice", "BertForMultipleChoice"))
    with pytest.raises(ValueError, match="PARBertForMultipleChoice reads more than one text in a row, and graphs read"):
        optimize(choice, runtime="onnx")
    half = copy.deepcopy(encoder).to(torch.bfloat16)
    with pytest.raises(ValueError, match=r"PARBertModel is in torch.bfloat16 on cpu, and graphs run in 32 bits"):
        optimize(half, runtime="auto")
    writer = pipeline(
        "text-generation",
        str(save(tmp_path / "writer", "Qwen3ForCausalLM", **SOURCES["Qwen3Model"])),
        tokenizer=AutoTokenizer.from_pretrained(tmp_path / "writer"),
    )
    with pytest.raises(ValueError, match="SandwichLMForCausalLM writes token by token with a cache, which graphs lack"):
        optimize(writer, runtime="onnx")


@pytest.mark.full
def test_processes_of_a_pool_run_the_graph(encoder):
    ours = optimize(encoder, runtime="onnx")
    pool = ours.start_multi_process_pool(["cpu", "cpu"])
    try:
        found = ours.encode(MANY, pool=pool, chunk_size=4)
    finally:
        ours.stop_multi_process_pool(pool)
    np.testing.assert_allclose(found, encoder.encode(MANY), atol=1e-5)

"""Graphs of sentence-transformers' models, beside these models themselves."""

import json
import re
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import sentence_transformers
import torch
from families import build
from launched import python
from sentence_transformers.sentence_transformer import modules
from tiny_graphs import FILES, RUNTIMES, every_format, export_all
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer
from transformers.modeling_outputs import BaseModelOutput, SequenceClassifierOutput

from sublayers.hub.tokenizers import save_tokenizers
from sublayers.training import cli
from sublayers.training.data.tokenizers import train_tokenizer
from sublayers.training.serve.encoders import write_tokenizer
from sublayers.training.serve.export import export_graph

pytestmark = pytest.mark.slow

# the last one is longer than what is read
TEXTS = ["a short text", "one", "another one, and a longer text, and then a short one", "short, and " * 20]
PROMPTS = {"document": "", "query": "a longer query: "}
PAIRS = [(first, second) for first in TEXTS for second in TEXTS[:2]]
MAX_LENGTH = 24
CLOSE = {"atol": 1e-5, "rtol": 1e-4}
FIRST_TOKEN = {"text": {"method": "forward_first_token", "method_output_name": "last_hidden_state"}}
# family, mode of pooling, what the body computes, and whether embeddings get the length 1
ENCODERS = {
    "mean": ("par_bert", "mean", None, True),
    "first token": ("macaron_bert", "cls", FIRST_TOKEN, True),
    "decoder": ("sandwich_lm", "cls", None, False),
}


def save_model(folder, family, head, **options):
    tokenizer = train_tokenizer([*TEXTS, *PROMPTS.values()], "wordpiece", 200)
    model = build(family, head, vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, **options)
    model.save_pretrained(folder)
    save_tokenizers([tokenizer], folder, model.config)


def make_encoder(folder, family, mode, method, normalizes, *others):
    save_model(folder / "model", family, AutoModel)
    options = {} if method is None else {"modality_config": method, "module_output_name": "token_embeddings"}
    body = modules.Transformer(str(folder / "model"), max_seq_length=MAX_LENGTH, **options)
    parts = [body, modules.Pooling(body.get_embedding_dimension(), mode), *[modules.Normalize()] * normalizes, *others]
    encoder = sentence_transformers.SentenceTransformer(
        modules=parts, prompts=PROMPTS, similarity_fn_name="dot", device="cpu"
    )
    encoder.save(str(folder / "encoder"), create_model_card=False)
    return encoder


def make_cross_encoder(folder, num_labels=1, **options):
    save_model(folder / "model", "par_bert", AutoModelForSequenceClassification, num_labels=num_labels)
    encoder = sentence_transformers.CrossEncoder(
        str(folder / "model"), max_length=MAX_LENGTH, device="cpu", prompts=PROMPTS, **options
    )
    encoder.save(str(folder / "encoder"))
    return encoder


@pytest.fixture(scope="module", params=ENCODERS)
def served(request, tmp_path_factory):
    """An encoder, the folder where it is and its graphs are, and whether it computes the first token alone."""
    root = tmp_path_factory.mktemp("encoder")
    encoder = make_encoder(root, *ENCODERS[request.param])
    export_all(root / "encoder", root)
    return encoder, root, request.param == "first token"


@pytest.fixture(scope="module", params=[(1, {}), (3, {"activation_fn": nn.Tanh()})])
def reranker(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("reranker")
    encoder = make_cross_encoder(root, request.param[0], **request.param[1])
    export_all(root / "encoder", root)
    return encoder, root


def run(folder, form, batch, int8=False):
    return RUNTIMES[form].load(folder / FILES[form][int8])({name: rows.numpy() for name, rows in batch.items()})


def inputs_of(tokenizer, texts, with_types=True):
    batch = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
    return {name: batch[name] for name in ("input_ids", "attention_mask", *["token_type_ids"] * with_types)}


@every_format
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.representatives(1)
def test_the_graph_gives_the_encoders_embeddings(served, form, side):
    encoder, root, computes_first = served
    tokenizer = AutoTokenizer.from_pretrained(root / form, padding_side=side)
    encoder.tokenizer.padding_side = side
    for name, prompt in PROMPTS.items():
        batch = inputs_of(tokenizer, [prompt + text for text in TEXTS], "bert" in encoder[0].config.model_type)
        outputs = run(root / form, form, batch)
        assert batch["input_ids"].shape[1] == MAX_LENGTH
        assert outputs.keys() == {"last_hidden_state", "sentence_embedding"}
        assert outputs["last_hidden_state"].shape[1] == (1 if computes_first else MAX_LENGTH)
        expected = encoder.encode(TEXTS, prompt_name=name)
        np.testing.assert_allclose(outputs["sentence_embedding"], expected, **CLOSE)


@every_format
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.full
def test_the_graph_gives_the_cross_encoders_scores(reranker, form, side):
    encoder, root = reranker
    tokenizer = AutoTokenizer.from_pretrained(root / form, padding_side=side)
    encoder.tokenizer.padding_side = side
    outputs = run(root / form, form, inputs_of(tokenizer, PAIRS))
    np.testing.assert_allclose(outputs["scores"], encoder.predict(PAIRS), **CLOSE)
    logits = encoder.predict(PAIRS, activation_fn=nn.Identity()).reshape(len(PAIRS), -1)
    np.testing.assert_allclose(outputs["logits"], logits, **CLOSE)


@pytest.fixture(scope="module")
def without_torch(tmp_path_factory):
    """A folder with all packages but torch and this one."""
    place = tmp_path_factory.mktemp("packages")
    for path in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if not re.match(r"torch|__editable__|sublayers", path.name):
            (place / path.name).symlink_to(path)
    return place


def run_snippet(root, form, name, packages):
    [code] = re.findall(r"```python\n(.*?)```", (root / form / "README.md").read_text(), re.DOTALL)
    options, path, missing = ([], "", "sublayers") if form == "torch_export" else (["-S"], str(packages), "torch")
    code += f"\nimport sys\nassert {missing!r} not in sys.modules\nprint({name}.tolist())"
    printed = python(*options, "-c", code, home=root, PYTHONPATH=path)
    return np.array(json.loads(printed.splitlines()[-1]))


ASKED = ["Ada wrote the first program.", "Who wrote it?"]


@every_format
@pytest.mark.representatives(1)
def test_the_card_tells_how_to_embed_where_torch_is_not(served, form, without_torch):
    encoder, root, _ = served
    found = run_snippet(root, form, "sentence_embedding", without_torch)
    np.testing.assert_allclose(found, encoder.encode(ASKED, prompt_name="query"), **CLOSE)
    assert "SentenceTransformer.encode" in (root / form / "README.md").read_text()


@every_format
@pytest.mark.full
def test_the_card_tells_how_to_score_pairs_where_torch_is_not(reranker, form, without_torch):
    encoder, root = reranker
    expected = encoder.predict([(ASKED[1], ASKED[0]), (ASKED[1], "It is raining.")], prompt_name="query")
    found = run_snippet(root, form, "scores", without_torch)
    np.testing.assert_allclose(found, expected, **CLOSE)


class Opened(nn.Module):
    """What optimum, which no release of transformers that we support can import, makes of a graph's folder."""

    _save_pretrained = None

    def __init__(self, folder, config, export, file_name=None, **kwargs):
        super().__init__()
        assert not export
        self.config, self.folder = config, Path(folder)
        self.form = "onnx" if (self.folder / "onnx").exists() else "openvino"

    @classmethod
    def from_pretrained(cls, folder, **options):
        return cls(folder, **options)

    def forward(self, input_ids, attention_mask, token_type_ids=None, **kwargs):
        batch = {"input_ids": input_ids, "attention_mask": attention_mask}
        if b"token_type_ids" in (self.folder / FILES[self.form][0]).read_bytes():
            batch["token_type_ids"] = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        outputs = run(self.folder, self.form, batch)
        if "logits" in outputs:
            return SequenceClassifierOutput(logits=torch.from_numpy(outputs["logits"]))
        return BaseModelOutput(last_hidden_state=torch.from_numpy(outputs["last_hidden_state"]))


@pytest.fixture
def optimum(monkeypatch):
    tasks = ("CausalLM", "FeatureExtraction", "MaskedLM", "SequenceClassification")
    for name, prefix, constant in (
        ("onnxruntime", "ORT", {"ONNX_WEIGHTS_NAME": "model.onnx"}),
        ("intel.openvino", "OV", {"OV_XML_FILE_NAME": "openvino_model.xml"}),
    ):
        module = ModuleType(f"optimum.{name}")
        vars(module).update(constant | {f"{prefix}ModelFor{task}": Opened for task in tasks})
        for parent in ("optimum", "optimum.intel"):
            monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
        monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.mark.parametrize("form", ["onnx", "openvino"])
@pytest.mark.full
def test_sentence_transformer_opens_the_folder(served, form, optimum):
    encoder, root, _ = served
    opened = sentence_transformers.SentenceTransformer(str(root / form), backend=form, device="cpu")
    # the type and the tokenizer are known to whatever version optimum needs
    assert opened[0].config.model_type == "bert"
    described = json.loads((root / form / "tokenizer_config.json").read_text())
    assert described["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert (opened.prompts, opened.max_seq_length, opened.similarity_fn_name) == (PROMPTS, MAX_LENGTH, "dot")
    for name in PROMPTS:
        expected = encoder.encode(TEXTS, prompt_name=name)
        np.testing.assert_allclose(opened.encode(TEXTS, prompt_name=name), expected, **CLOSE)


@pytest.mark.parametrize("form", ["onnx", "openvino"])
@pytest.mark.full
def test_cross_encoder_opens_the_folder(reranker, form, optimum):
    encoder, root = reranker
    opened = sentence_transformers.CrossEncoder(str(root / form), backend=form, device="cpu")
    assert type(opened.activation_fn) is type(encoder.activation_fn)
    assert (opened.prompts, opened.max_length) == (PROMPTS, MAX_LENGTH)
    expected = encoder.predict(PAIRS, prompt_name="query")
    np.testing.assert_allclose(opened.predict(PAIRS, prompt_name="query"), expected, **CLOSE)


@pytest.mark.parametrize("form", ["onnx", "openvino"])
@pytest.mark.full
def test_of_embeddings_8_bits_are_measured_by_their_cosine(form, tmp_path, capsys):
    encoder = make_encoder(tmp_path, *ENCODERS["mean"])
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    flags = ["--format", form, "--int8", "--texts", str(tmp_path / "texts.txt")]
    cli.main(["export", str(tmp_path / "encoder"), str(tmp_path / "served"), *flags])
    rows = [inputs_of(encoder.tokenizer, [text]) for text in TEXTS]
    small = np.concatenate([run(tmp_path / "served", form, batch, True)["sentence_embedding"] for batch in rows])
    # both have the length 1
    cosines = (encoder.encode(TEXTS) * small).sum(1)
    assert 0.9 < cosines.min() < 0.99999
    mean, smallest = f"{cosines.mean():.4f}", f"{cosines.min():.4f}"
    assert f"embeddings of 4 texts have a cosine of {mean} to those before, and {smallest} at least" in (
        capsys.readouterr().out
    )
    card = (tmp_path / "served" / "README.md").read_text()
    assert f"cosine of the embeddings of 4 texts of its users, mean and smallest | {mean}, {smallest} |" in card
    assert "are stored in 8 bits" in card


def test_the_tokenizers_file_alone_cuts_and_pads_texts(tmp_path):
    tokenizer = train_tokenizer(TEXTS, "wordpiece", 200)
    # this call stays in what is saved
    tokenizer(TEXTS, padding="max_length", truncation=True, max_length=5)
    tokenizer.save_pretrained(tmp_path / "source")
    write_tokenizer(tmp_path / "source", tmp_path / "served", MAX_LENGTH)
    rows = Tokenizer.from_file(str(tmp_path / "served" / "tokenizer.json")).encode_batch(TEXTS)
    expected = tokenizer(TEXTS, padding=True, truncation=True, max_length=MAX_LENGTH)
    assert [row.ids for row in rows] == expected["input_ids"]
    assert [row.attention_mask for row in rows] == expected["attention_mask"]
    described = json.loads((tmp_path / "served" / "tokenizer_config.json").read_text())
    assert described["max_length"] == described["model_max_length"] == MAX_LENGTH
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path / "padless")
    with pytest.raises(ValueError, match="padless pads no texts; set its `pad_token`"):
        write_tokenizer(tmp_path / "padless", tmp_path / "served", MAX_LENGTH)


# what transformers.js, fastembed, text-embeddings-inference and sentence-transformers look for
LAYOUT = {
    "config.json": {"model_type": "bert", "pad_token_id": 0, "hidden_size": 32, "max_position_embeddings": 64},
    "tokenizer.json": {},
    "tokenizer_config.json": {"model_max_length": MAX_LENGTH, "max_length": MAX_LENGTH, "pad_token": "[PAD]"},
    "sentence_bert_config.json": {"max_seq_length": MAX_LENGTH},
    "config_sentence_transformers.json": {"prompts": PROMPTS},
}


def test_the_folder_has_what_other_programs_look_for(served):
    encoder, root, _ = served
    assert (root / "onnx" / "onnx" / "model.onnx").exists()
    assert (root / "openvino" / "openvino" / "openvino_model.xml").exists()
    for file, fields in LAYOUT.items():
        found = json.loads((root / "onnx" / file).read_text())
        assert {name: found.get(name) for name in fields} == fields
    pooling = json.loads((root / "onnx" / "1_Pooling" / "config.json").read_text())
    assert pooling["pooling_mode_mean_tokens"] == (encoder[1].pooling_mode == "mean")
    assert pooling["pooling_mode_cls_token"] == (encoder[1].pooling_mode == "cls")


def test_fastembed_gives_the_encoders_embeddings(served):
    fastembed = pytest.importorskip("fastembed")
    description = pytest.importorskip("fastembed.common.model_description")
    encoder, root, _ = served
    name, pooling, normalizes = str(root), encoder[1].pooling_mode, len(encoder) > 2
    fastembed.TextEmbedding.add_custom_model(
        name,
        description.PoolingType[pooling.upper()],
        normalizes,
        description.ModelSource(hf="nobody/nothing"),
        dim=32,
        model_file=FILES["onnx"][0],
    )
    embedding = fastembed.TextEmbedding(name, specific_model_path=str(root / "onnx"), threads=1)
    np.testing.assert_allclose([*embedding.embed(TEXTS)], encoder.encode(TEXTS), atol=1e-5)


def test_fastembed_gives_the_cross_encoders_logits(reranker):
    rerank = pytest.importorskip("fastembed.rerank.cross_encoder")
    description = pytest.importorskip("fastembed.common.model_description")
    encoder, root = reranker
    source = description.ModelSource(hf="nobody/nothing")
    rerank.TextCrossEncoder.add_custom_model(str(root), sources=source, model_file=FILES["onnx"][0])
    scorer = rerank.TextCrossEncoder(str(root), specific_model_path=str(root / "onnx"), threads=1)
    expected = encoder.predict([(TEXTS[0], text) for text in TEXTS], activation_fn=nn.Identity())
    # of several labels, it returns the first
    np.testing.assert_allclose([*scorer.rerank(TEXTS[0], TEXTS)], expected.reshape(len(TEXTS), -1)[:, 0], atol=1e-5)


def test_an_encoder_needs_no_pooler_of_its_model(tmp_path):
    encoder = make_encoder(tmp_path, *ENCODERS["mean"])
    encoder[0].model.pooler = None
    encoder.save(str(tmp_path / "encoder"), create_model_card=False)
    export_graph(tmp_path / "encoder", tmp_path / "served", "torch_export")
    rows = [inputs_of(encoder.tokenizer, [text]) for text in TEXTS]
    found = np.concatenate([run(tmp_path / "served", "torch_export", batch)["sentence_embedding"] for batch in rows])
    np.testing.assert_allclose(found, encoder.encode(TEXTS), atol=1e-5)


def test_what_a_graph_would_leave_out_is_refused(tmp_path):
    make_encoder(tmp_path / "dense", "par_bert", "mean", None, False, modules.Dense(32, 8))
    with pytest.raises(ValueError, match="has the modules Transformer, Pooling, Dense; give an encoder"):
        export_graph(tmp_path / "dense" / "encoder", tmp_path / "served", "torch_export")
    make_cross_encoder(tmp_path / "cross", activation_fn=nn.Softplus())
    with pytest.raises(ValueError, match=r"has the activation 'torch\.nn\.modules\.activation\.Softplus'; give"):
        export_graph(tmp_path / "cross" / "encoder", tmp_path / "served", "torch_export")
    rows = [{"type": f"sentence_transformers.models.{name}", "path": ""} for name in ("Transformer", "Dense")]
    (tmp_path / "cross" / "encoder" / "modules.json").write_text(json.dumps(rows))
    with pytest.raises(ValueError, match="is a CrossEncoder of Transformer, Dense around PARBertForSequence"):
        export_graph(tmp_path / "cross" / "encoder", tmp_path / "served", "torch_export")
    assert not (tmp_path / "served").exists()


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config_sentence_transformers.json", {"activation_fn": ["x"]}),
        ("config_sentence_transformers.json", {"model_type": "CrossEncoder", "prompts": "x"}),
        ("config_sentence_transformers.json", [1]),
        ("modules.json", [{}]),
    ],
)
def test_a_damaged_cross_encoder_is_one_sentence(file, content, tmp_path):
    make_cross_encoder(tmp_path)
    (tmp_path / "encoder" / file).write_text(json.dumps(content))
    with pytest.raises(ValueError, match="is damaged, or holds more than weights"):
        export_graph(tmp_path / "encoder", tmp_path / "served", "torch_export")


# as versions before 4 and before 6 say it
@pytest.mark.parametrize("in_config", ["sbert_ce_default_activation_function", "sentence_transformers"])
@pytest.mark.representatives(1)
def test_a_cross_encoder_of_an_older_version(in_config, tmp_path):
    encoder = make_cross_encoder(tmp_path, activation_fn=nn.Tanh())
    name = "torch.nn.modules.activation.Tanh"
    for file in ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"):
        (tmp_path / "encoder" / file).unlink()
    config = json.loads((tmp_path / "encoder" / "config.json").read_text())
    config[in_config] = {"activation_fn": name} if in_config == "sentence_transformers" else name
    (tmp_path / "encoder" / "config.json").write_text(json.dumps(config))
    export_graph(tmp_path / "encoder", tmp_path / "served", "torch_export")
    outputs = run(tmp_path / "served", "torch_export", inputs_of(encoder.tokenizer, PAIRS))
    np.testing.assert_allclose(outputs["scores"], encoder.predict(PAIRS), **CLOSE)

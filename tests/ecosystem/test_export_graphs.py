import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from common import tokens
from families import FAMILIES, build
from hub_metadata import metadata_errors
from launched import python
from tiny_graphs import FILES, RUNTIMES, every_format, export_all, onnx, openvino
from transformers import AutoTokenizer, DistilBertConfig, DistilBertForSequenceClassification

from sublayers import PARBertForSequenceClassification
from sublayers.convert.graphs import onnx_runtime, program
from sublayers.training import cli
from sublayers.training.data.tokenizers import train_tokenizer
from sublayers.training.serve import export
from sublayers.training.serve.export import export_graph

pytestmark = pytest.mark.slow

# the first ones stand for all
HEADS = [("par_bert", "QuestionAnswering"), ("iot_seq2seq", None), ("sandwich_lm", None)]
HEADS += [(family, None) for family in FAMILIES if family not in ("sandwich_lm", "iot_seq2seq")]
HEADS += [(family, "SequenceClassification") for family in ("sandwich_lm", "par_transformer_xl", "macaron_bert")]
BERTS = ("PreTraining", "NextSentencePrediction", "TokenClassification", "MultipleChoice")
HEADS += [("par_bert", name) for name in BERTS]
TEXTS = ["Ada wrote the first program.", "the program", "Who wrote it?"]


def save(model, folder, **options):
    model.save_pretrained(folder, **options)
    train_tokenizer(TEXTS[:1], "wordpiece", 60).save_pretrained(folder)
    return model


def a_batch(ranks, rows, length):
    """Inputs of a graph, by the number of their axes: the first row is padded on its left, the last on its right."""
    batch = {}
    for name, rank in ranks.items():
        shape = (rows, *[2] * (rank - 2), length + 3 * name.startswith("decoder"))
        batch[name] = tokens(int(np.prod(shape[:-1])), shape[-1]).view(shape)
        if name == "token_type_ids":
            batch[name] %= 2
        elif name.endswith("mask"):
            batch[name] = torch.ones(shape, dtype=torch.long)
            batch[name][0, ..., :4] = batch[name][-1, ..., -3:] = 0
    return batch


def snippet(folder):
    [code] = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    return code


@pytest.mark.parametrize(("family", "head"), HEADS)
@pytest.mark.representatives(1)
def test_gives_eagers_outputs_at_any_size_padded_on_either_side(family, head, tmp_path, monkeypatch):
    auto_class = head and getattr(transformers, f"AutoModelFor{head}")
    model = save(build(family, auto_class), tmp_path / "trained")
    names = ["input_ids", "attention_mask"]
    if model.config.is_encoder_decoder:
        names += ["decoder_input_ids", "decoder_attention_mask"]
    elif family.endswith("bert"):
        names += ["token_type_ids"]
    ranks = dict.fromkeys(names, 3 if head == "MultipleChoice" else 2)
    # these take seconds, and are the same for all
    traced = program.trace(model)
    monkeypatch.setattr(export, "trace", lambda model: traced)
    export_all(tmp_path / "trained", tmp_path)
    for form, runtime in RUNTIMES.items():
        folder = tmp_path / form
        # other programs know this type; it has no graph that generates
        writes = model.can_generate() or model.config.is_encoder_decoder
        described = json.loads((folder / "config.json").read_text())
        assert described["model_type"] == (model.config.model_type if writes else "bert")
        assert writes or [*described["id2label"].values()] == [*model.config.id2label.values()]
        run = runtime.load(folder / FILES[form][0])
        for rows, length in ((2, 8), (3, 9), (5, 20), (4, 61), (2, 5)):
            batch = a_batch(ranks, rows, length)
            with torch.no_grad():
                wanted = model(**batch, use_cache=False)
            # a graph takes these inputs, and no fewer or more
            given = run({name: tensor.numpy() for name, tensor in batch.items()})
            assert [*given] == [*wanted]
            for name in given:
                torch.testing.assert_close(torch.from_numpy(given[name]), wanted[name], atol=1e-4, rtol=1e-4)
        # the way to load it that the card tells
        monkeypatch.chdir(tmp_path)
        told = {}
        exec(compile(snippet(folder), "README.md", "exec"), told)
        assert told.keys() > given.keys()
        assert metadata_errors((folder / "README.md").read_text()) == ([], [])


@pytest.mark.full
def test_models_of_transformers_run_alike(tmp_path):
    config = DistilBertConfig(vocab_size=61, dim=32, n_layers=1, n_heads=4, hidden_dim=48)
    model = DistilBertForSequenceClassification(config).eval()
    traced = program.trace(model)
    for runtime in RUNTIMES.values():
        runtime.write(traced, tmp_path / runtime.FILE)
        run = runtime.load(tmp_path / runtime.FILE, threads=1)
        batch = a_batch(dict.fromkeys(traced.graph_signature.user_inputs, 2), 3, 17)
        with torch.no_grad():
            wanted = model(**batch).logits
        [logits] = run({name: tensor.numpy() for name, tensor in batch.items()}).values()
        torch.testing.assert_close(torch.from_numpy(logits), wanted, atol=1e-4, rtol=1e-4)


def test_a_graph_takes_no_types_of_tokens_where_there_is_only_one():
    # some tokenizers give the second text of a pair a second type all the same
    traced = program.trace(build("par_bert", transformers.AutoModelForSequenceClassification, type_vocab_size=1))
    assert traced.graph_signature.user_inputs == ("input_ids", "attention_mask")


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """A folder that brings its code along and has numbers of 16 bits, and the graphs of 32 bits that come from it."""
    root = tmp_path_factory.mktemp("classifier")
    torch.manual_seed(0)
    model = build("par_bert", transformers.AutoModelForSequenceClassification, sublayer_order="sf5", num_labels=3)
    save(model.to(torch.bfloat16), root / "trained", self_contained=True)
    (root / "trained" / "run.json").write_text(json.dumps({"command": "sublayers glue", "seeds": [7]}))
    (root / "texts.txt").write_text("\n".join([*TEXTS, "", ""]))
    export_all(root / "trained", root)
    return root


def in_eager(root, text):
    model = PARBertForSequenceClassification.from_pretrained(root / "trained", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(root / "trained")
    with torch.no_grad():
        return model(**tokenizer([text], return_tensors="pt")).logits


@every_format
@pytest.mark.full
def test_the_card_tells_how_to_load_it_where_this_package_is_not(classifier, form):
    code = f"{snippet(classifier / form)}import sys\nassert 'sublayers' not in sys.modules\nprint(logits.tolist())"
    if form == "torch_export":
        code += "\nassert type(program(**inputs)) is dict"
    printed = python("-c", code, home=classifier)
    assert np.allclose(json.loads(printed.splitlines()[-1]), in_eager(classifier, "A text."), atol=1e-4)


@every_format
def test_the_folder_holds_what_serving_needs_and_nothing_of_this_machine(classifier, form):
    folder = classifier / form
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    written = {"onnx": {"onnx/model.onnx"}, "torch_export": {"model.pt2"}}
    written["openvino"] = {"openvino/openvino_model.xml", "openvino/openvino_model.bin"}
    tokenizer = {"tokenizer.json", "tokenizer_config.json"}
    assert names == {"config.json", "README.md", "run.json"} | written[form] | tokenizer
    assert not json.loads((classifier / form / "config.json").read_text()).get("auto_map")
    card = (classifier / form / "README.md").read_text()
    assert "encoder `sf5`, 6 sublayers" in card
    assert "25,651 parameters" in card
    assert "sublayers glue" in card
    # exporters note for each node where its code stands
    for name in written[form]:
        assert str(Path(cli.__file__).parents[1]).encode() not in (classifier / form / name).read_bytes()


def linear_maps(folder):
    """Count the linear maps of a graph that are computed from weights of 8 bits."""
    if (folder / "onnx").exists():
        [file] = (folder / "onnx").iterdir()
        graph = onnx.load(file).graph
        # one that rounds in fixed ranges reads weights that are converted back, which the runtime turns into integers
        bytes_ = {weight.name for weight in graph.initializer if weight.data_type == onnx.TensorProto.INT8}
        back = {node.output[0] for node in graph.node if node.op_type == "DequantizeLinear" and node.input[0] in bytes_}
        products = [node for node in graph.node if node.op_type == "MatMul" and node.input[1] in back]
        return len(products) + sum(node.op_type == "MatMulInteger" for node in graph.node)
    graph = openvino.Core().read_model(folder / "openvino" / "openvino_model.xml")

    def reads_bytes(node):
        if node.get_type_name() == "Constant":
            return node.get_output_element_type(0) == openvino.Type.i8
        kinds = ("Convert", "Multiply", "Subtract", "Reshape", "Transpose")
        first = node.input(0).get_source_output().get_node() if node.get_type_name() in kinds else None
        return first is not None and reads_bytes(first)

    products = [node for node in graph.get_ordered_ops() if node.get_type_name() == "MatMul"]
    return sum(reads_bytes(node.input(1).get_source_output().get_node()) for node in products)


@pytest.mark.parametrize("calibrated", [False, True])
@pytest.mark.parametrize("form", ["onnx", "openvino"])
@pytest.mark.representatives(1)
def test_what_8_bits_change_is_measured_on_texts(classifier, form, calibrated, capsys, tmp_path):
    flags = ["--format", form, "--int8", "--texts", str(classifier / "texts.txt")]
    if calibrated:
        # a text whose ranges were not measured may leave those of so small a model far behind
        (tmp_path / "calibration.txt").write_text("\n".join(TEXTS))
        flags += ["--calibration_file", str(tmp_path / "calibration.txt")]
    cli.main(["export", str(classifier / "trained"), str(tmp_path / "served"), *flags])
    printed = capsys.readouterr().out
    tokenizer = AutoTokenizer.from_pretrained(classifier / "trained")
    # the names that transformers.js and sentence-transformers look for
    assert FILES["onnx"] == ("onnx/model.onnx", "onnx/model_quantized.onnx")
    files = [classifier / form / FILES[form][0], tmp_path / "served" / FILES[form][1]]
    full, small = map(RUNTIMES[form].load, files)
    logits = [
        [run(dict(tokenizer([text], return_tensors="np")))["logits"][0] for run in (full, small)] for text in TEXTS
    ]
    differences = np.abs([first - second for first, second in logits])
    same = np.mean([first.argmax() == second.argmax() for first, second in logits])
    assert 0 < differences.mean() < 0.5
    mean, largest = f"{differences.mean():.2g}", f"{differences.max():.2g}"
    assert f"of 3 texts by {mean} on average and {largest} at most; {same:.1%} have the same label" in printed
    card = (tmp_path / "served" / "README.md").read_text()
    assert f"on 3 texts of its users, mean and largest | {mean}, {largest} |" in card
    assert f"the same label | {100 * same:.1f} %" in card
    assert ("ranges that were measured on other texts" in card) == calibrated
    # every linear map: 4 of attention, 2 of each feed-forward, the pooler and the classifier. ONNX Runtime leaves out
    # those that attention folds and, in fixed ranges, the last two, since they read single positions
    left_out = (2 + 2 * calibrated) * (form == "onnx")
    assert linear_maps(tmp_path / "served") == 4 + 2 * 5 + 2 - left_out
    assert linear_maps(classifier / form) == 0
    sizes = [sum(part.stat().st_size for part in file.parent.iterdir()) for file in files]
    assert f"{files[1]}, {sizes[1] / 1e6:.1f} MB" in printed
    # the description of fixed ranges is larger than what they save of so few weights
    assert calibrated or sizes[1] < sizes[0]


@pytest.mark.full
def test_ranges_of_8_bits_come_from_the_calibration_file(classifier, tmp_path):
    served = []
    for name, text in (("a", "Ada"), ("b", "program program first")):
        (tmp_path / f"{name}.txt").write_text(text)
        export_graph(
            classifier / "trained", tmp_path / name, "onnx", True, classifier / "texts.txt", tmp_path / f"{name}.txt"
        )
        served.append((tmp_path / name / FILES["onnx"][1]).read_bytes())
    assert served[0] != served[1]


@pytest.mark.full
def test_8_bits_are_measured_on_the_standard_library_where_there_are_no_texts(tmp_path):
    # so many words that the exporter does not store their table transposed, too
    model = save(build("macaron_seq2seq", vocab_size=12000), tmp_path / "trained")
    report = export_graph(tmp_path / "trained", tmp_path / "served", "onnx", int8=True)
    assert report["texts"] > 40
    assert 0 < report["mean"] < report["largest"] < np.inf
    # words are no labels
    assert report["same_label"] is None
    operations = [node.op_type for node in onnx.load(tmp_path / "served" / FILES["onnx"][1]).graph.node]
    assert operations.count("MatMulInteger") == sum(isinstance(module, torch.nn.Linear) for module in model.modules())
    assert "lines of the Python standard library" in (tmp_path / "served" / "README.md").read_text()


def test_a_graph_that_differs_is_not_kept(classifier, monkeypatch, tmp_path):
    run = program.run_model
    monkeypatch.setattr(program, "run_model", lambda *given: {name: y + 2e-4 for name, y in run(*given).items()})
    with pytest.raises(ValueError, match=r"differ from the model's by 0\.0002, more than 0\.0001"):
        export_graph(classifier / "trained", tmp_path / "served", "torch_export")
    assert not [*tmp_path.iterdir()]


def test_what_is_compared_has_other_sizes_and_padding_on_either_side(classifier, monkeypatch):
    graph = onnx_runtime.load(classifier / "onnx" / FILES["onnx"][0])
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
        if texts:
            with pytest.raises((ValueError, OSError), match=said):
                export_graph(classifier / "trained", tmp_path / "served", "onnx", True, None, tmp_path / texts)
    assert not (tmp_path / "served").exists()


@every_format
@pytest.mark.full
def test_without_a_tokenizer_the_card_shows_numbers(form, tmp_path, monkeypatch):
    build("macaron_seq2seq").save_pretrained(tmp_path / "trained")
    export_graph(tmp_path / "trained", tmp_path / "served", form)
    monkeypatch.chdir(tmp_path)
    told = {}
    exec(compile(snippet(tmp_path / "served"), "README.md", "exec"), told)
    assert told["logits"].shape == (1, 1, 61)


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.representatives(1)
def test_embeddings_have_8_bits_and_a_scale_for_each(is_tied, tmp_path):
    # one of the words is far larger than all others, and one is nothing
    model = build("par_bert", tie_word_embeddings=is_tied, vocab_size=12000)
    with torch.no_grad():
        model.model.embed_tokens.weight[3] *= 50
        model.model.embed_tokens.weight[4] = 0
    onnx_runtime.write(program.trace(model), tmp_path / "full.onnx")
    onnx_runtime.quantize(tmp_path / "full.onnx", tmp_path / "small.onnx")
    graph = onnx.load(tmp_path / "small.onnx").graph
    stored = {weight.name: onnx.numpy_helper.to_array(weight) for weight in graph.initializer}
    # what is left in 32 bits are scales, biases, norms, and the maps of attention that it folds
    assert max(table.size for table in stored.values() if table.dtype == np.float32) == 12000
    looked_up = [stored[node.input[0]] for node in graph.node if node.op_type == "Gather" and node.input[0] in stored]
    tables = {table.shape: table for table in looked_up if table.dtype == np.int8}
    scales = {len(table): table for table in looked_up if table.dtype == np.float32}
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            weight = module.weight.detach().numpy()
            step = np.abs(weight).max(1, keepdims=True) / 127
            found = tables[weight.shape] * scales[len(weight)]
            assert (np.abs(found - weight) <= 0.501 * step).all()
    batch = {name: rows.numpy() for name, rows in program.draw_inputs(model, 3, 17).items()}
    full, small = (onnx_runtime.load(tmp_path / name)(batch)["logits"] for name in ("full.onnx", "small.onnx"))
    # measured: 0.04 and 0.06
    assert 0 < np.linalg.norm(small - full) / np.linalg.norm(full) < 0.1

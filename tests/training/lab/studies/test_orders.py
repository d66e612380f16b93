import json
from collections import Counter
from operator import itemgetter

import pytest
import torch
from sacrebleu.metrics import BLEU, TER
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from sublayers import (
    IOTSeq2SeqConfig,
    IOTSeq2SeqForConditionalGeneration,
    SandwichSeq2SeqConfig,
    SandwichSeq2SeqForConditionalGeneration,
)
from sublayers.training.lab.studies.ensemble import Seq2SeqEnsemble
from sublayers.training.lab.studies.orders import main as study_orders
from sublayers.training.lab.studies.written import tokens
from sublayers.training.results import read

pytestmark = pytest.mark.slow

SPECIAL = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
WORDS = [f"w{i}" for i in range(24)]
VOCAB = [*SPECIAL.values(), *WORDS]
SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "dropout": 0.0, "vocab_size": len(VOCAB)}
TASK = ["--task", "translation", "--source", "de", "--target", "en"]
ORDERS = ["scf", "fsc", "cfs"]


@pytest.fixture(scope="module")
def tokenizer():
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(VOCAB)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    inputs = ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=words, model_input_names=inputs, **SPECIAL)


def randomized(model, seed=0):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=1.0 if "embed" in name else 0.3, generator=generator)
    model.generation_config.update(num_beams=2, max_length=9, min_new_tokens=5)
    return model.eval()


def iot(seed=0, **options):
    options = {"decoder_orders": ORDERS, "num_encoder_blocks": 1, "num_decoder_blocks": 2} | options
    return randomized(IOTSeq2SeqForConditionalGeneration(IOTSeq2SeqConfig(**SIZES, **options)), seed)


def sandwich(decoder="(scf)2", seed=0):
    config = SandwichSeq2SeqConfig(**SIZES, encoder_sublayer_order="sf", decoder_sublayer_order=decoder)
    return randomized(SandwichSeq2SeqForConditionalGeneration(config), seed)


def sentences(number, seed):
    """Texts of 2 to 9 words."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 10, (number,), generator=generator).tolist()
    return [" ".join(WORDS[i] for i in torch.randint(len(WORDS), (length,), generator=generator)) for length in lengths]


def write_alone(model, tokenizer, sources, **forced):
    """What a model writes for each text by itself."""
    written = [model.generate(**tokenizer(source, return_tensors="pt"), **forced)[0] for source in sources]
    return tokenizer.batch_decode(written, skip_special_tokens=True)


def spoil(text, i):
    """Make a reference that a text is close to, here more, there less."""
    words = text.split()
    return " ".join([*words[: len(words) - i % 4], "w0", "w1"])


def bleu(predictions, references):
    return BLEU().corpus_score(predictions, [references]).score


@pytest.fixture
def study(tmp_path, tokenizer):
    """Saves models and pairs of a split or more, and studies them: what is found, and the rows of figures."""

    def save_and_study(models, pairs, *flags, output="study"):
        runs = [str(tmp_path / name) for name in models]
        for run, model in zip(runs, models.values(), strict=True):
            model.save_pretrained(run)
            if not (tmp_path / run / "tokenizer.json").exists():
                tokenizer.save_pretrained(run)
        files = []
        for split, (sources, targets) in pairs.items():
            rows = [{"de": source, "en": target} for source, target in zip(sources, targets, strict=True)]
            (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
            files.append(f"--{split}_file={tmp_path / split}.jsonl")
        words = [*TASK, "--model_name_or_path", *runs, *files, *flags]
        found = study_orders([*words, f"--output_dir={tmp_path / output}"])
        return found, read(tmp_path / output / "results.csv")

    return save_and_study


def test_every_order_writes_every_subset(tmp_path, tokenizer, study):
    model, run = iot(), str(tmp_path / "iot")
    sources = sentences(12, seed=1)
    texts = [write_alone(model, tokenizer, sources, forced_decoder_order=n) for n in range(3)]
    targets = [spoil(texts[i % 3][i], i) for i in range(12)]
    chosen = [model.get_encoder()(**tokenizer(text, return_tensors="pt")).decoder_order.item() for text in sources]
    assert len(set(chosen)) == 3

    found, rows = study({"iot": model}, {"validation": (sources, targets)}, "--batch_size=4")
    studied = found["models"][run]
    assert [order["decoder"] for order in studied["orders"]] == ["(scf)2", "(fsc)2", "(cfs)2"]
    for n, order in enumerate(studied["orders"]):
        assert order["metrics"]["bleu"] == pytest.approx(bleu(texts[n], targets))
        assert order["share"] == chosen.count(n) / 12
    assert studied["predicted"]["bleu"] == pytest.approx(bleu(write_alone(model, tokenizer, sources), targets))

    for n, subset in enumerate(studied["subsets"]):
        own = [i for i in range(12) if chosen[i] == n]
        scores = [bleu([written[i] for i in own], [targets[i] for i in own]) for written in texts]
        assert subset["order"] == n + 1
        assert subset["sentences"] == len(own)
        assert subset["scores"] == pytest.approx(scores)
        assert subset["mean_score"] == pytest.approx(sum(scores) / 3)
        for side, texts_of_side in (("source", sources), ("target", targets)):
            counts = Counter(word for i in own for word in texts_of_side[i].split())
            numbers = sorted(counts.values(), reverse=True)
            assert subset[side]["tokens"] == sum(numbers)
            assert subset[side]["distinct_tokens"] == len(numbers)
            assert subset[side]["top_frequency"] == pytest.approx(sum(numbers[:20]) / sum(numbers))
    assert json.loads((tmp_path / "study" / "results.json").read_text()) == found
    assert [row["written in"] for row in rows[:4]] == ["1", "2", "3", "predicted"]
    second, subset = rows[1], studied["subsets"][1]
    assert (second["model"], second["encoder order"], second["decoder order"]) == (run, "sf", "(fsc)2")
    assert second["bleu"] == f"{studied['orders'][1]['metrics']['bleu']:.2f}"
    assert second["predicted for (%)"] == f"{100 * chosen.count(1) / 12:.1f}"
    assert (second["sentences"], second["their bleu under 3"]) == (f"{chosen.count(1)}", f"{subset['scores'][2]:.2f}")
    assert second["distinct target tokens"] == f"{subset['target']['distinct_tokens']}"
    assert rows[3]["bleu"] == f"{studied['predicted']['bleu']:.2f}"
    assert second["data"] == "validation.jsonl"
    assert "<svg" in (tmp_path / "study" / "subsets.svg").read_text()


def test_it_is_told_which_order_translates_which_sentence_best(tmp_path, tokenizer, study):
    models, sources = {"0": sandwich(seed=1), "1": sandwich("(fsc)2", seed=2), "iot": iot()}, sentences(9, seed=3)
    groups = {str(tmp_path / "iot"): [{"forced_decoder_order": n} for n in range(3)]}
    texts = {name: [write_alone(models["iot"], tokenizer, sources, **o) for o in each] for name, each in groups.items()}
    texts["models of one order"] = [write_alone(models[name], tokenizer, sources) for name in "01"]
    mixed = [*texts[str(tmp_path / "iot")], *texts["models of one order"]]
    targets = [spoil(mixed[i % 5][i], i) for i in range(9)]
    found, rows = study(models, {"validation": (sources, targets)})
    assert found["preferences"].keys() == texts.keys()
    sentence_bleu = BLEU(effective_order=True)
    for name, written in texts.items():
        group, number = found["preferences"][name], len(written)
        scores = torch.tensor(
            [[sentence_bleu.sentence_score(own[i], [targets[i]]).score for own in written] for i in range(9)]
        )
        best = scores.eq(scores.amax(1, keepdim=True)).double()
        best = (best / best.sum(1, keepdim=True)).mean(0).tolist()
        assert [*group["best_bleu"].values()] == pytest.approx(best)
        edits = [[TER().sentence_score(own[i], [targets[i]]).score for own in written] for i in range(9)]
        shares = [sum((own[n] == min(own)) / own.count(min(own)) for own in edits) / 9 for n in range(number)]
        assert [*group["best_ter"].values()] == pytest.approx(shares)
        assert group["sentence_variance"] == pytest.approx(scores.var(1, correction=0).mean().item(), rel=1e-4)
        corpus = torch.tensor([bleu(own, targets) for own in written], dtype=torch.double)
        assert group["corpus_variance"] == pytest.approx(corpus.var(correction=0).item())
        chosen = [written[scores[i].argmax()][i] for i in range(9)]
        assert group["best_of_all"] == pytest.approx(bleu(chosen, targets))
        own = [row for row in rows if row["model"] in group["best_bleu"] or row["model"] == name][:number]
        assert [row["best bleu (%)"] for row in own] == [f"{100 * share:.1f}" for share in best]
    lines = (tmp_path / "study" / "sentences.jsonl").read_text().splitlines()
    assert len(lines) == 18
    last = json.loads(lines[-1])
    assert last["reference"] == targets[8]
    assert [each["text"] for each in last["written"].values()] == [own[8] for own in texts["models of one order"]]


def test_a_subset_is_described_by_its_tokens_without_special_ones(tokenizer):
    # w0 once, w1 twice, ..., so that 20 words are more frequent than the rest
    text = " ".join(" ".join([word] * i) for i, word in enumerate(WORDS, 1))
    pairs = {"source": ["w0", text], "target": [text, "w3 w3 w4"]}
    found = tokens([1], pairs, (tokenizer, tokenizer))
    assert found["source"] == {"tokens": 300, "distinct_tokens": 24, "top_frequency": pytest.approx(290 / 300)}
    assert found["target"] == {"tokens": 3, "distinct_tokens": 2, "top_frequency": 1}


@pytest.mark.full
def test_with_orders_of_both_stacks_a_path_is_a_pair_of_them(tmp_path, tokenizer, study):
    model, sources = iot(encoder_orders=["sf", "fs"], decoder_orders=ORDERS[:2]), sentences(8, seed=2)
    paths = [(0, 0), (0, 1), (1, 0), (1, 1)]
    texts = [write_alone(model, tokenizer, sources, forced_encoder_order=m, forced_decoder_order=n) for m, n in paths]
    targets = [spoil(texts[i % 4][i], i) for i in range(8)]
    found, _ = study({"iot": model}, {"validation": (sources, targets)})
    orders = found["models"][str(tmp_path / "iot")]["orders"]
    scores = [order["metrics"]["bleu"] for order in orders]
    assert scores == pytest.approx([bleu(written, targets) for written in texts])
    outputs = [model.get_encoder()(**tokenizer(text, return_tensors="pt")) for text in sources]
    counts = Counter((output.encoder_order.item(), output.decoder_order.item()) for output in outputs)
    assert [order["share"] for order in orders] == [counts[path] / 8 for path in paths]


def test_models_that_learnt_orders_in_pairs_write_in_the_first_of_the_encoder(tmp_path, tokenizer, study):
    model, sources = iot(encoder_orders=["sf", "fs"], order_paths="paired"), sentences(6, seed=9)
    found, _ = study({"iot": model}, {"validation": (sources, write_alone(model, tokenizer, sources))})
    studied = found["models"][str(tmp_path / "iot")]
    orders = [(order["encoder"], order["decoder"]) for order in studied["orders"]]
    assert orders == [("sf", "(scf)2"), ("sf", "(fsc)2"), ("sf", "(cfs)2")]
    assert studied["predicted"]["bleu"] == pytest.approx(100)


@pytest.mark.full
def test_without_prediction_the_order_best_on_validation_data_is_scored_on_test_data(tmp_path, tokenizer, study):
    model, scores, pairs = iot(predict_order=False), {}, {}
    for split, seed, best in (("validation", 3, 2), ("test", 4, 1)):
        sources = sentences(8, seed)
        texts = [write_alone(model, tokenizer, sources, forced_decoder_order=n) for n in range(3)]
        targets = [spoil(text, i) for i, text in enumerate(texts[best])]
        scores[split] = [bleu(written, targets) for written in texts]
        pairs[split] = sources, targets
    # on the test data another order is the best
    assert [values.index(max(values)) for values in scores.values()] == [2, 1]
    for split, values in scores.items():
        everything, rows = study({"shared": model}, pairs, f"--split={split}", output=split)
        found = everything["models"][str(tmp_path / "shared")]
        assert [order["metrics"]["bleu"] for order in found["orders"]] == pytest.approx(values)
        assert found["best"]["order"] == 3
        assert found["best"]["validation"] == pytest.approx(max(scores["validation"]))
        assert found["best"]["metrics"]["bleu"] == pytest.approx(values[2])
        assert "subsets" not in found
        [best] = [row for row in rows if "best of validation" in row["written in"]]
        assert best["bleu"] == f"{values[2]:.2f}"
    with pytest.raises(ValueError, match="no validation data; give --validation_file"):
        study({"shared": model}, {"test": pairs["test"]}, "--split=test", output="new")


def reordered(model, order):
    """A model of another decoder order whose n-th sublayer of a letter has the weights of that in the model."""
    twin = sandwich(order)
    others = {name: value for name, value in model.state_dict().items() if ".decoder.layers" not in name}
    twin.load_state_dict(others, strict=False)
    new, old = (
        sorted(zip(letters, each.model.decoder.layers, strict=True), key=itemgetter(0))
        for letters, each in ((order, twin), ("scfscf", model))
    )
    for (_, layer), (_, trained) in zip(new, old, strict=True):
        layer.load_state_dict(trained.state_dict())
    return twin


def test_a_model_of_one_order_is_forced_into_others(tmp_path, tokenizer, study):
    model, sources = sandwich(), sentences(8, seed=5)
    twins = [model, reordered(model, "fscfsc"), reordered(model, "ccfsfs")]
    texts = [write_alone(twin, tokenizer, sources) for twin in twins]
    assert len({tuple(written) for written in texts}) == 3
    targets = [spoil(texts[i % 3][i], i) for i in range(8)]
    models, pairs = {"plain": model, "iot": iot()}, {"validation": (sources, targets)}
    # the trained order comes first, and counts once
    found, rows = study(models, pairs, "--orders", "fsc", "scf", "ccfsfs")
    plain, own = (found["models"][str(tmp_path / name)]["orders"] for name in models)
    assert [order["decoder"] for order in plain] == ["(scf)2", "(fsc)2", "c2(fs)2"]
    assert [order["trained"] for order in plain] == [True, False, False]
    scores = [order["metrics"]["bleu"] for order in plain]
    assert scores == pytest.approx([bleu(written, targets) for written in texts])
    assert "best" not in found["models"][str(tmp_path / "plain")]
    # a model with orders of its own has those
    assert [order["decoder"] for order in own] == ["(scf)2", "(fsc)2", "(cfs)2"]
    assert all(order["trained"] for order in own)
    assert (rows[1]["written in"], rows[1]["decoder order"]) == ("2, untrained", "(fsc)2")
    with pytest.raises(ValueError, match="--orders sf does not repeat to the sublayers of scfscf"):
        study(models, pairs, "--orders", "sf", output="new")


def test_the_first_model_then_the_first_two_write_together(tmp_path, tokenizer, study):
    members, sources = [iot(0), sandwich(seed=1)], sentences(8, seed=6)
    together = [write_alone(Seq2SeqEnsemble(members[:n]), tokenizer, sources) for n in (1, 2)]
    targets = [spoil(together[i % 2][i], i) for i in range(8)]
    models, pairs = {"0": members[0], "1": members[1]}, {"validation": (sources, targets)}
    found, rows = study(models, pairs, "--ensemble")
    scores = [metrics["bleu"] for metrics in found["ensembles"]]
    assert scores == pytest.approx([bleu(written, targets) for written in together])
    last = [row for row in rows if row["written in"] == "ensemble"][-1]
    assert (last["model"], last["bleu"]) == (f"{tmp_path / '0'}, {tmp_path / '1'}", f"{scores[1]:.2f}")

    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path / "1")
    tokenizer.add_tokens("more")
    tokenizer.save_pretrained(tmp_path / "1")
    with pytest.raises(ValueError, match=f"{tmp_path / '1'} has another vocabulary than {tmp_path / '0'}"):
        study(models, pairs, "--ensemble", output="new")


def test_curves_hold_what_training_left_and_the_scores_of_checkpoints(tmp_path, tokenizer, study):
    sources, checkpoints = sentences(6, seed=7), {20: sandwich(seed=1), 100: sandwich(seed=2)}
    for step, model in checkpoints.items():
        folder = tmp_path / "run" / f"checkpoint-{step}"
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    losses = {"loss": [[10, 3.0], [20, 2.0]], "eval_loss": [[20, 2.5]]}
    (tmp_path / "run" / "loss_curve.json").write_text(json.dumps(losses))
    texts = {step: write_alone(model, tokenizer, sources) for step, model in checkpoints.items()}
    targets = [spoil(texts[20][i], i) for i in range(6)]
    found, _ = study({"run": sandwich()}, {"test": (sources, targets)}, "--split=test", "--checkpoints")
    curves = found["curves"][str(tmp_path / "run")]
    points = curves.pop("bleu")
    assert curves == losses
    assert [step for step, _ in points] == [20, 100]
    assert [score for _, score in points] == pytest.approx([bleu(written, targets) for written in texts.values()])
    assert "bleu of test" in (tmp_path / "study" / "learning_curves.svg").read_text()
    assert not (tmp_path / "study" / "subsets.svg").exists()


def test_generation_flags_take_the_place_of_the_models_settings(tmp_path, tokenizer, study):
    model, sources = sandwich(), sentences(6, seed=8)
    texts = write_alone(model, tokenizer, sources, num_beams=1, max_length=7)
    assert texts != write_alone(model, tokenizer, sources)
    found, _ = study({"run": model}, {"validation": (sources, texts)}, "--num_beams=1", "--max_length=7")
    assert found["models"][str(tmp_path / "run")]["orders"][0]["metrics"]["bleu"] == pytest.approx(100)


@pytest.mark.parametrize(
    ("pairs", "flags", "output", "message"),
    [
        ({"validation": (["w0"], ["w1"])}, [], "run", "run is not empty and holds no study; choose another"),
        ({}, [], "study", "no data for --task translation; give --validation_file"),
        ({"validation": (["w0"], ["w1"])}, ["--split=test"], "study", "no test data; give --test_file"),
    ],
)
def test_refuses_what_it_cannot_study(pairs, flags, output, message, tmp_path, study):
    with pytest.raises((FileExistsError, ValueError), match=message):
        study({"run": sandwich()}, pairs, *flags, output=output)
    assert not (tmp_path / "study").exists()

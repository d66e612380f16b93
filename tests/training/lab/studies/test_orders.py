import json
from collections import Counter

import pytest
import torch
from sacrebleu.metrics import BLEU
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from sublayers import (
    IOTSeq2SeqConfig,
    IOTSeq2SeqForConditionalGeneration,
    SandwichSeq2SeqConfig,
    SandwichSeq2SeqForConditionalGeneration,
)
from sublayers.training.lab.studies.ensemble import Seq2SeqEnsemble
from sublayers.training.lab.studies.orders import main as study_orders, study_subset
from sublayers.training.results import read

pytestmark = pytest.mark.slow

SPECIAL = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
WORDS = [f"w{i}" for i in range(24)]
VOCAB = [*SPECIAL.values(), *WORDS]
SIZES = {
    "vocab_size": len(VOCAB),
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "dropout": 0.0,
}
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


def save(model, tokenizer, folder):
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def sentences(number, seed):
    """Texts of 2 to 9 words."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 10, (number,), generator=generator).tolist()
    return [" ".join(WORDS[i] for i in torch.randint(len(WORDS), (length,), generator=generator)) for length in lengths]


def write_alone(model, tokenizer, source, **forced):
    """What a model writes for one text."""
    ids = model.generate(**tokenizer(source, return_tensors="pt"), **forced)
    return tokenizer.batch_decode(ids, skip_special_tokens=True)[0]


def spoil(text, i):
    """Make a reference that a text is close to, here more, there less."""
    words = text.split()
    return " ".join([*words[: len(words) - i % 4], "w0", "w1"])


def bleu(predictions, references):
    return BLEU().corpus_score(predictions, [references]).score


def file_of(folder, split, sources, targets):
    path = folder / f"{split}.jsonl"
    pairs = [{"de": source, "en": target} for source, target in zip(sources, targets, strict=True)]
    path.write_text("\n".join(map(json.dumps, pairs)))
    return f"--{split}_file={path}"


def test_every_order_writes_every_subset(tmp_path, tokenizer):
    model = iot()
    sources = sentences(12, seed=1)
    texts = [[write_alone(model, tokenizer, text, forced_decoder_order=n) for text in sources] for n in range(3)]
    targets = [spoil(texts[i % 3][i], i) for i in range(12)]
    chosen = [model.get_encoder()(**tokenizer(text, return_tensors="pt")).decoder_order.item() for text in sources]
    assert len(set(chosen)) == 3

    run, out = save(model, tokenizer, tmp_path / "iot"), tmp_path / "study"
    flags = [*TASK, "--model_name_or_path", run, file_of(tmp_path, "validation", sources, targets)]
    found = study_orders([*flags, f"--output_dir={out}", "--batch_size=4"])
    studied = found["models"][run]
    assert [order["decoder"] for order in studied["orders"]] == ["(scf)2", "(fsc)2", "(cfs)2"]
    for n, order in enumerate(studied["orders"]):
        assert order["metrics"]["bleu"] == pytest.approx(bleu(texts[n], targets))
        assert order["share"] == chosen.count(n) / 12
    predicted = [write_alone(model, tokenizer, text) for text in sources]
    assert studied["predicted"]["bleu"] == pytest.approx(bleu(predicted, targets))

    for n, subset in enumerate(studied["subsets"]):
        rows = [i for i in range(12) if chosen[i] == n]
        scores = [bleu([written[i] for i in rows], [targets[i] for i in rows]) for written in texts]
        assert subset["order"] == n + 1
        assert subset["sentences"] == len(rows)
        assert subset["scores"] == pytest.approx(scores)
        assert subset["mean_score"] == pytest.approx(sum(scores) / 3)
        for side, texts_of_side in (("source", sources), ("target", targets)):
            counts = Counter(word for i in rows for word in texts_of_side[i].split())
            numbers = sorted(counts.values(), reverse=True)
            assert subset[side]["tokens"] == sum(numbers)
            assert subset[side]["distinct_tokens"] == len(numbers)
            assert subset[side]["top_frequency"] == pytest.approx(sum(numbers[:20]) / sum(numbers))
    assert json.loads((out / "results.json").read_text()) == found
    rows = read(out / "results.csv")
    assert [row["written in"] for row in rows[:4]] == ["1", "2", "3", "predicted"]
    second, subset = rows[1], studied["subsets"][1]
    assert (second["model"], second["encoder order"], second["decoder order"]) == (run, "sf", "(fsc)2")
    assert second["bleu"] == f"{studied['orders'][1]['metrics']['bleu']:.2f}"
    assert second["predicted for (%)"] == f"{100 * chosen.count(1) / 12:.1f}"
    assert (second["sentences"], second["their bleu under 3"]) == (f"{chosen.count(1)}", f"{subset['scores'][2]:.2f}")
    assert second["distinct target tokens"] == f"{subset['target']['distinct_tokens']}"
    assert rows[3]["bleu"] == f"{studied['predicted']['bleu']:.2f}"
    assert second["data"] == "validation.jsonl"
    assert "<svg" in (out / "subsets.svg").read_text()


def test_a_subset_is_described_by_its_tokens_without_special_ones(tokenizer):
    # w0 once, w1 twice, ..., so that 20 words are more frequent than the rest
    text = " ".join(" ".join([word] * i) for i, word in enumerate(WORDS, 1))
    pairs = {"source": ["w0", text], "target": [text, "w3 w3 w4"]}

    def score(predictions, references):
        return {"length": len(predictions[0]), "references": references}

    found = study_subset([1], pairs, [["", "one"], ["", "three"]], (tokenizer, tokenizer), score, "length")
    assert found["scores"] == [3, 5]
    assert found["mean_score"] == 4
    assert found["source"] == {"tokens": 300, "distinct_tokens": 24, "top_frequency": pytest.approx(290 / 300)}
    assert found["target"] == {"tokens": 3, "distinct_tokens": 2, "top_frequency": 1}


@pytest.mark.full
def test_with_orders_of_both_stacks_a_path_is_a_pair_of_them(tmp_path, tokenizer):
    model = iot(encoder_orders=["sf", "fs"], decoder_orders=ORDERS[:2])
    sources = sentences(8, seed=2)
    paths = [(0, 0), (0, 1), (1, 0), (1, 1)]
    texts = [
        [write_alone(model, tokenizer, text, forced_encoder_order=m, forced_decoder_order=n) for text in sources]
        for m, n in paths
    ]
    targets = [spoil(texts[i % 4][i], i) for i in range(8)]
    run = save(model, tokenizer, tmp_path / "iot")
    flags = [*TASK, "--model_name_or_path", run, file_of(tmp_path, "validation", sources, targets)]
    studied = study_orders([*flags, f"--output_dir={tmp_path / 'study'}"])["models"][run]
    scores = [order["metrics"]["bleu"] for order in studied["orders"]]
    assert scores == pytest.approx([bleu(written, targets) for written in texts])
    counts: Counter = Counter()
    for text in sources:
        output = model.get_encoder()(**tokenizer(text, return_tensors="pt"))
        counts[(output.encoder_order.item(), output.decoder_order.item())] += 1
    assert [order["share"] for order in studied["orders"]] == [counts[path] / 8 for path in paths]


def test_models_that_learnt_orders_in_pairs_write_in_the_first_of_the_encoder(tmp_path, tokenizer):
    model = iot(encoder_orders=["sf", "fs"], order_paths="paired")
    sources = sentences(6, seed=9)
    texts = [write_alone(model, tokenizer, text) for text in sources]
    run, pairs = save(model, tokenizer, tmp_path / "iot"), file_of(tmp_path, "validation", sources, texts)
    flags = [*TASK, "--model_name_or_path", run, pairs, f"--output_dir={tmp_path / 'study'}"]
    studied = study_orders(flags)["models"][run]
    orders = [(order["encoder"], order["decoder"]) for order in studied["orders"]]
    assert orders == [("sf", "(scf)2"), ("sf", "(fsc)2"), ("sf", "(cfs)2")]
    assert studied["predicted"]["bleu"] == pytest.approx(100)


@pytest.mark.full
def test_without_prediction_the_order_that_is_best_on_validation_data_is_scored_on_test_data(tmp_path, tokenizer):
    model = iot(predict_order=False)
    splits = {"validation": (sentences(8, seed=3), 2), "test": (sentences(8, seed=4), 1)}
    scores, files = {}, []
    for split, (sources, best) in splits.items():
        texts = [[write_alone(model, tokenizer, text, forced_decoder_order=n) for text in sources] for n in range(3)]
        targets = [spoil(text, i) for i, text in enumerate(texts[best])]
        scores[split] = [bleu(written, targets) for written in texts]
        files.append(file_of(tmp_path, split, sources, targets))
    # on the test data another order is the best
    assert [values.index(max(values)) for values in scores.values()] == [2, 1]
    run = save(model, tokenizer, tmp_path / "shared")
    flags = [*TASK, *files, "--model_name_or_path", run]
    for split, values in scores.items():
        found = study_orders([*flags, f"--split={split}", f"--output_dir={tmp_path / split}"])["models"][run]
        assert [order["metrics"]["bleu"] for order in found["orders"]] == pytest.approx(values)
        assert found["best"]["order"] == 3
        assert found["best"]["validation"] == pytest.approx(max(scores["validation"]))
        assert found["best"]["metrics"]["bleu"] == pytest.approx(values[2])
        assert "subsets" not in found
        [best] = [row for row in read(tmp_path / split / "results.csv") if "best of validation" in row["written in"]]
        assert best["bleu"] == f"{values[2]:.2f}"
    with pytest.raises(ValueError, match="no validation data; give --validation_file"):
        study_orders([*TASK, files[1], "--model_name_or_path", run, "--split=test", f"--output_dir={tmp_path / 'new'}"])


def reordered(model, order):
    """A model of another decoder order whose n-th sublayer of a letter has the weights of that in the model."""
    twin = sandwich(order)
    twin.load_state_dict(
        {name: value for name, value in model.state_dict().items() if ".decoder.layers" not in name}, strict=False
    )
    for letter in "scf":
        of_letter = [
            [layer for layer, kind in zip(each.model.decoder.layers, letters, strict=True) if kind == letter]
            for each, letters in ((twin, order), (model, "scfscf"))
        ]
        for new, old in zip(*of_letter, strict=True):
            new.load_state_dict(old.state_dict())
    return twin


def test_a_model_of_one_order_is_forced_into_others(tmp_path, tokenizer):
    model, sources = sandwich(), sentences(8, seed=5)
    twins = [model, reordered(model, "fscfsc"), reordered(model, "ccfsfs")]
    texts = [[write_alone(twin, tokenizer, text) for text in sources] for twin in twins]
    assert len({tuple(written) for written in texts}) == 3
    targets = [spoil(texts[i % 3][i], i) for i in range(8)]
    plain, iot_run = save(model, tokenizer, tmp_path / "plain"), save(iot(), tokenizer, tmp_path / "iot")
    flags = [*TASK, "--model_name_or_path", plain, iot_run, file_of(tmp_path, "validation", sources, targets)]
    # the trained order comes first, and counts once
    given = ["--orders", "fsc", "scf", "ccfsfs"]
    found = study_orders([*flags, *given, f"--output_dir={tmp_path / 'study'}"])["models"]
    assert [order["decoder"] for order in found[plain]["orders"]] == ["(scf)2", "(fsc)2", "c2(fs)2"]
    assert [order["trained"] for order in found[plain]["orders"]] == [True, False, False]
    scores = [order["metrics"]["bleu"] for order in found[plain]["orders"]]
    assert scores == pytest.approx([bleu(written, targets) for written in texts])
    assert "best" not in found[plain]
    # a model with orders of its own has those
    assert [order["decoder"] for order in found[iot_run]["orders"]] == ["(scf)2", "(fsc)2", "(cfs)2"]
    assert all(order["trained"] for order in found[iot_run]["orders"])
    second = read(tmp_path / "study" / "results.csv")[1]
    assert (second["model"], second["written in"], second["decoder order"]) == (plain, "2, untrained", "(fsc)2")
    with pytest.raises(ValueError, match="--orders sf does not repeat to the sublayers of scfscf"):
        study_orders([*flags, "--orders", "sf", f"--output_dir={tmp_path / 'new'}"])


def test_the_first_model_then_the_first_two_write_together(tmp_path, tokenizer):
    members, sources = [iot(0), sandwich(seed=1)], sentences(8, seed=6)
    together = [[write_alone(Seq2SeqEnsemble(members[:n]), tokenizer, text) for text in sources] for n in (1, 2)]
    targets = [spoil(together[i % 2][i], i) for i in range(8)]
    runs = [save(model, tokenizer, tmp_path / str(n)) for n, model in enumerate(members)]
    flags = [*TASK, file_of(tmp_path, "validation", sources, targets), "--ensemble", "--model_name_or_path", *runs]
    found = study_orders([*flags, f"--output_dir={tmp_path / 'study'}"])
    scores = [metrics["bleu"] for metrics in found["ensembles"]]
    assert scores == pytest.approx([bleu(written, targets) for written in together])
    last = [row for row in read(tmp_path / "study" / "results.csv") if row["written in"] == "ensemble"][-1]
    assert (last["model"], last["bleu"]) == (f"{runs[0]}, {runs[1]}", f"{scores[1]:.2f}")

    tokenizer = PreTrainedTokenizerFast.from_pretrained(runs[1])
    tokenizer.add_tokens("more")
    tokenizer.save_pretrained(runs[1])
    with pytest.raises(ValueError, match=f"{runs[1]} has another vocabulary than {runs[0]}"):
        study_orders([*flags, f"--output_dir={tmp_path / 'new'}"])


def test_curves_hold_what_training_left_and_the_scores_of_checkpoints(tmp_path, tokenizer):
    sources, run = sentences(6, seed=7), save(sandwich(), tokenizer, tmp_path / "run")
    checkpoints = {20: sandwich(seed=1), 100: sandwich(seed=2)}
    for step, model in checkpoints.items():
        save(model, tokenizer, tmp_path / "run" / f"checkpoint-{step}")
        (tmp_path / "run" / f"checkpoint-{step}" / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    losses = {"loss": [[10, 3.0], [20, 2.0]], "eval_loss": [[20, 2.5]]}
    (tmp_path / "run" / "loss_curve.json").write_text(json.dumps(losses))
    texts = {step: [write_alone(model, tokenizer, text) for text in sources] for step, model in checkpoints.items()}
    targets = [spoil(texts[20][i], i) for i in range(6)]
    flags = [*TASK, "--model_name_or_path", run, file_of(tmp_path, "test", sources, targets), "--split=test"]
    out = tmp_path / "study"
    curves = study_orders([*flags, "--checkpoints", f"--output_dir={out}"])["curves"][run]
    points = curves.pop("bleu")
    assert curves == losses
    assert [step for step, _ in points] == [20, 100]
    assert [score for _, score in points] == pytest.approx([bleu(written, targets) for written in texts.values()])
    assert "bleu of test" in (out / "learning_curves.svg").read_text()
    assert not (out / "subsets.svg").exists()


def test_generation_flags_take_the_place_of_the_models_settings(tmp_path, tokenizer):
    model, sources = sandwich(), sentences(6, seed=8)
    options = {"num_beams": 1, "max_length": 7}
    texts = [write_alone(model, tokenizer, text, **options) for text in sources]
    assert texts != [write_alone(model, tokenizer, text) for text in sources]
    run, pairs = save(model, tokenizer, tmp_path / "run"), file_of(tmp_path, "validation", sources, texts)
    flags = [*TASK, "--model_name_or_path", run, pairs, *(f"--{name}={value}" for name, value in options.items())]
    found = study_orders([*flags, f"--output_dir={tmp_path / 'study'}"])
    assert found["models"][run]["orders"][0]["metrics"]["bleu"] == pytest.approx(100)


def test_refuses_what_it_cannot_study(tmp_path, tokenizer):
    run = save(sandwich(), tokenizer, tmp_path / "run")
    pairs = file_of(tmp_path, "validation", ["w0"], ["w1"])
    flags = [*TASK, "--model_name_or_path", run]
    with pytest.raises(FileExistsError, match="run is not empty; choose another folder"):
        study_orders([*flags, pairs, f"--output_dir={run}"])
    out = f"--output_dir={tmp_path / 'study'}"
    with pytest.raises(ValueError, match="no data for --task translation; give --validation_file"):
        study_orders([*flags, out])
    with pytest.raises(ValueError, match="no test data; give --test_file"):
        study_orders([*flags, out, pairs, "--split=test"])
    assert not (tmp_path / "study").exists()

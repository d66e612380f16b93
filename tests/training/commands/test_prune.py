import json
from itertools import combinations

import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer
from tiny_teachers import TEXTS, make_sentence_encoder, save_teacher, write_texts
from tiny_translators import draw_pairs, loss_of, save_pairs, save_translator
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    T5Config,
    T5ForConditionalGeneration,
    pipeline,
)

import sublayers.pipelines  # noqa: F401
from sublayers.configuration.sublayer_cost import parameters
from sublayers.training.commands.prune import main as prune
from sublayers.training.commands.seq2seq import main as seq2seq
from sublayers.training.data.corpus import CorpusArguments, load_corpus
from sublayers.training.distill.subsets import is_model, orders_of, take_subset
from sublayers.training.prune.opening import open_model, read_texts
from sublayers.training.prune.search import SUBSET
from sublayers.training.trials import JOURNAL, read_study, results

FAST = ["--texts=24", "--max_length=16", "--whole_rows=true"]


def measured(folder):
    """The losses of all subsets that a search has measured, of which none is measured twice."""
    trials = results(read_study("pruning", folder))
    losses = {tuple(trial.user_attrs[SUBSET]): trial.value for trial in trials}
    assert len(losses) == len(trials)
    return losses


@pytest.fixture
def classifier(tmp_path):
    save_teacher(tmp_path / "teacher", labels=3)
    return [str(tmp_path / "teacher"), f"--train_file={write_texts(tmp_path / 'texts.txt')}", *FAST]


def test_a_sentence_encoder_opens_as_it_did(tmp_path, capsys):
    save_teacher(tmp_path / "teacher")
    make_sentence_encoder(tmp_path / "teacher")
    flags = [f"--train_file={write_texts(tmp_path / 'texts.txt')}", *FAST, "--budget", "0.7", "0.4"]
    prune([str(tmp_path / "teacher"), *flags, "--price=parameters", f"--output_dir={tmp_path / 'out'}"])
    losses = measured(tmp_path / "out")
    # all subsets of six sublayers
    assert len(losses) == 63
    teacher = open_model(str(tmp_path / "teacher"))
    for budget in ("0.7", "0.4"):
        encoder = SentenceTransformer(str(tmp_path / "out" / budget), device="cpu")
        names = encoder[0].model.config.kept_sublayers
        places = tuple(["s0", "f0", "s1", "f1", "s2", "f2"].index(name) for name in names)
        smaller = take_subset(teacher.model, places)
        batch = teacher.tokenizer(TEXTS, padding=True, return_tensors="pt")
        with torch.no_grad():
            states, mask = smaller(**batch).last_hidden_state, batch["attention_mask"][..., None]
        expected = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1))
        torch.testing.assert_close(encoder.encode(TEXTS, convert_to_tensor=True), expected, atol=1e-5, rtol=1e-4)
        prices = {subset: sum(1 + (place % 2) / 4 for place in subset) for subset in losses}
        assert places in losses
        assert prices[places] < prices[(0, 1, 2, 3, 4, 5)]
    table = (tmp_path / "out" / "README.md").read_text()
    # the whole model loses nothing, on these texts and on others
    assert [cell.strip() for cell in table.splitlines()[2].split("|")[2:6]] == ["all", "1.000", "0.0000", "0.0000"]
    assert table in capsys.readouterr().out
    assert (tmp_path / "out" / "subsets.svg").stat().st_size > 1000
    assert "It was not trained after that." in (tmp_path / "out" / "0.4" / "README.md").read_text()


def test_the_best_subset_within_the_budget_is_kept_whatever_is_cut_off(classifier, tmp_path):
    flags = [*classifier, "--budget=0.5", f"--output_dir={tmp_path / 'out'}", "--price=flops"]
    prune(flags)
    card, journal = (tmp_path / "out" / "README.md").read_text().splitlines()[3], tmp_path / "out" / JOURNAL
    first = measured(tmp_path / "out")
    # what a process that was killed leaves
    journal.write_text("".join(journal.read_text().splitlines(keepends=True)[:-9]))
    assert len(measured(tmp_path / "out")) == len(first) - 9
    prune(flags)
    assert measured(tmp_path / "out") == pytest.approx(first)
    # but for the time
    again = (tmp_path / "out" / "README.md").read_text().splitlines()[3]
    assert again.split("|")[:5] == card.split("|")[:5]
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out" / "0.5")
    assert len(model.config.kept_sublayers) == model.config.num_sublayers < 6
    assert AutoTokenizer.from_pretrained(tmp_path / "out" / "0.5").pad_token
    with pytest.raises(ValueError, match=r"no sublayers of .*teacher meet --budget 0\.001; give a larger one"):
        prune([*flags, "--budget=0.001"])
    for other, name in (("--seed=1", "texts"), ("--read=all", "read"), ("--price=cache", "price")):
        with pytest.raises(FileExistsError, match=rf"has a pruning with {name} .*, not"):
            prune([*flags, other])


@pytest.mark.parametrize(
    "flags", [["--price=cache"], ["--price=milliseconds"], ["--price=milliseconds", "--shape=3x9"]]
)
def test_other_prices(classifier, flags, tmp_path):
    prune([*classifier, "--budget=0.7", f"--output_dir={tmp_path / 'out'}", *flags])
    assert (tmp_path / "out" / "0.7" / "config.json").exists()
    whole = (tmp_path / "out" / "README.md").read_text().splitlines()[2].split("|")[6]
    assert ("(predicted " in whole) == ("--price=milliseconds" in flags)


ORDERS = {"encoder_sublayer_order": "(sf)2", "decoder_sublayer_order": "scf"}
BART = {"layers": 1, "ffn_dim": 24, "attention_heads": 2}


def translate(folder, texts):
    return [each["generated_text"] for each in pipeline("text2text-generation", model=str(folder), device="cpu")(texts)]


def pair_files(folder):
    """Texts that are chosen by, and others."""
    lines = ("\t".join(pair) + "\n" for pair in draw_pairs(9, seed=1))
    (folder / "others.txt").write_text("".join(lines))
    return {"train_file": save_pairs(folder), "validation_file": str(folder / "others.txt")}


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.representatives(1)
def test_the_best_of_all_subsets_of_both_stacks_is_kept(joint, tmp_path):
    model, *tokenizers = save_translator(tmp_path / "teacher", joint=joint, **ORDERS)
    files, out = pair_files(tmp_path), tmp_path / "out"
    flags = [*(f"--{name}={file}" for name, file in files.items()), "--texts=8", "--max_length=16"]
    prune([str(tmp_path / "teacher"), *flags, "--budget", "0.7", "0.4", "--price=parameters", f"--output_dir={out}"])
    found = measured(out)
    every = [subset for size in range(2, 8) for subset in combinations(range(7), size)]
    assert found.keys() == {subset for subset in every if is_model(subset, model.config)}
    corpus = load_corpus(CorpusArguments(**files))
    rows = read_texts(open_model(str(tmp_path / "teacher")), "next", 8, 16, False, 0, corpus, "train")
    # which takes a while, so not of all
    losses = {subset: loss_of(take_subset(model, subset), rows) for subset in [*found][::4]}
    assert {subset: found[subset] for subset in losses} == pytest.approx(losses, abs=1e-4)
    sizes, orders = model.config.sizes._asdict(), model.config.orders.values()
    counted = {subset: parameters("".join(orders_of(subset, *orders)), **sizes) for subset in found}
    names = ["s0", "f0", "s1", "f1", "decoder.s0", "decoder.c0", "decoder.f0"]
    for budget in (0.7, 0.4):
        affordable = [subset for subset in found if counted[subset] <= budget * counted[tuple(range(7))]]
        folder = out / f"{budget:g}"
        smaller = AutoModelForSeq2SeqLM.from_pretrained(folder)
        kept = tuple(names.index(name) for name in smaller.config.kept_sublayers)
        assert kept in affordable
        # a decoder without cross-attention answers alike whatever the encoder keeps
        assert found[kept] == pytest.approx(min(found[subset] for subset in affordable), abs=1e-5)
        assert (smaller.generation_config.num_beams, smaller.generation_config.max_length) == (2, 12)
        places = [folder, folder if joint else folder / "target_tokenizer"]
        for tokenizer, place in zip(tokenizers, places, strict=True):
            assert AutoTokenizer.from_pretrained(place).get_vocab() == tokenizer.get_vocab()
        (ids,) = take_subset(model, kept).generate(torch.tensor([tokenizers[0]("eins drei").input_ids]))
        assert translate(folder, ["eins drei"]) == [tokenizers[1].decode(ids, skip_special_tokens=True)]


def test_a_pruned_encoder_decoder_is_healed_by_training(tmp_path):
    save_translator(tmp_path / "teacher", joint=False, **ORDERS)
    flags = [*(f"--{name}={file}" for name, file in pair_files(tmp_path).items()), "--texts=16", "--max_length=16"]
    prune([str(tmp_path / "teacher"), *flags, "--budget=0.5", "--price=parameters", f"--output_dir={tmp_path / 'out'}"])
    row = (tmp_path / "out" / "README.md").read_text().splitlines()[3]
    train = [
        f"--model_name_or_path={tmp_path}/out/0.5",
        "--task=translation",
        "--source=de",
        "--target=en",
        "--use_cpu",
    ]
    train += ["--max_source_length=16", "--max_target_length=16", "--predict_with_generate=false"]
    for split, number, seed in (("train", 40, 0), ("validation", 9, 1)):
        pairs = [{"de": source, "en": target} for source, target in draw_pairs(number, seed)]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
        train.append(f"--{split}_file={tmp_path / split}.jsonl")
    before = seq2seq([*train, "--do_eval", f"--output_dir={tmp_path / 'before'}"])
    assert float(row.split("|")[5]) == pytest.approx(before["eval_loss"], abs=1e-4)
    learn = ["--max_steps=20", "--learning_rate=1e-2", "--warmup_steps=0", f"--output_dir={tmp_path / 'healed'}"]
    assert seq2seq([*train, *learn])["eval_loss"] < before["eval_loss"]
    pruned, healed = map(AutoConfig.from_pretrained, (tmp_path / "out" / "0.5", tmp_path / "healed"))
    assert pruned.kept_sublayers == healed.kept_sublayers


@pytest.mark.parametrize("read", ["all", "next"])
@pytest.mark.parametrize("price", ["cache", "milliseconds"])
@pytest.mark.representatives(2)
def test_other_prices_of_encoder_decoders(price, read, tmp_path):
    save_translator(tmp_path / "teacher", **ORDERS)
    flags = [f"--train_file={save_pairs(tmp_path)}", "--texts=8", "--max_length=16", "--budget=0.6"]
    prune([str(tmp_path / "teacher"), *flags, f"--output_dir={tmp_path / 'out'}", f"--price={price}", f"--read={read}"])
    kept = AutoConfig.from_pretrained(tmp_path / "out" / "0.6").kept_sublayers
    assert any(name.startswith("decoder.") for name in kept)
    if price == "cache":
        assert len({"decoder.s0", "decoder.c0"} & {*kept}) < 2


@pytest.mark.parametrize(("kind", "head"), [("Bart", "ForConditionalGeneration"), ("Marian", "MTModel")])
@pytest.mark.representatives(1)
def test_encoder_decoders_of_others_become_ours(kind, head, tmp_path):
    _, tokenizer, _ = save_translator(tmp_path / "teacher")
    ids = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    sides = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in BART.items()}
    ids |= {"decoder_start_token_id": tokenizer.eos_token_id, "forced_eos_token_id": tokenizer.eos_token_id}
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=len(tokenizer), d_model=16, max_position_embeddings=32, **sides, **ids
    )
    getattr(transformers, f"{kind}{head}")(config).save_pretrained(tmp_path / "other")
    tokenizer.save_pretrained(tmp_path / "other")
    flags = [f"--train_file={save_pairs(tmp_path)}", "--texts=8", "--max_length=16", "--budget=0.6"]
    prune([str(tmp_path / "other"), *flags, "--price=parameters", f"--output_dir={tmp_path / 'out'}"])
    assert AutoConfig.from_pretrained(tmp_path / "out" / "0.6").model_type == "sandwich_seq2seq"
    assert len(translate(tmp_path / "out" / "0.6", ["eins drei"])) == 1


def test_encoder_decoders_that_are_not_converted_are_refused(tmp_path):
    _, tokenizer, _ = save_translator(tmp_path / "t5")
    t5 = T5Config(vocab_size=len(tokenizer), d_model=16, d_ff=8, num_layers=1)
    T5ForConditionalGeneration(t5).save_pretrained(tmp_path / "t5")
    with pytest.raises(ValueError, match=r"t5 holds 't5'; of transformers' models, .* can be converted"):
        open_model(str(tmp_path / "t5"))

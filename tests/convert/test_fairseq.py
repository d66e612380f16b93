import argparse
import json

import pytest
import torch
from common import tokens
from common_fairseq import WIDTH, NaiveFairseq, bert, fairseq_stack, language_model, load_reference, translation_stacks
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForPreTraining,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
)

from sublayers import expand
from sublayers.convert.bert import from_macaron_bert
from sublayers.convert.language_models import from_fairseq_lm
from sublayers.convert.seq2seq import upgrade
from sublayers.convert.weights import place
from sublayers.training.commands.convert import main

ROWS = torch.where(torch.arange(9) < torch.tensor([[9], [5], [7]]), tokens(3, 9), 1)
# the release numbers the first sentence 1
SEGMENTS = (torch.arange(9) < 4).long().expand(3, -1)


@pytest.fixture
def convert(tmp_path):
    """Run the command on a checkpoint with options, and return the folder of the model."""

    def run(weights, **options):
        torch.save({"model": weights, "args": argparse.Namespace(**options)}, tmp_path / "checkpoint.pt")
        main([str(tmp_path / "checkpoint.pt"), str(tmp_path / "ours"), "--num_attention_heads=4"])
        return tmp_path / "ours"

    return run


def assert_close(actual, expected):
    # what the authors' code computed is stored in 32 bits; with weights that are drawn, both sides have 64
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5, check_dtype=False)


def bert_scores(naive, ids, segments):
    """Of the words at every position and of the pair, or of the classes."""
    states = naive.run("encoder", ids, segments=segments)
    pair = naive.linear(states[0], "classifier")
    if "embed_out" not in naive.weights:
        return pair
    return naive.norm(naive.act(naive.linear(states, "mid_layer.0")), "mid_layer.2") @ naive.weights[
        "embed_out"
    ].T, pair


def test_the_naive_network_is_the_authors_bert():
    weights, io, meta = load_reference("macaron/bert_macaron_pretrain")
    naive = NaiveFairseq(weights, meta["args"])
    for row, ids in enumerate(io["src_tokens"]):
        real = ids != 1
        words, pair = bert_scores(naive, ids[real], io["segment"][row, real])
        assert_close(words, io["mlm_logits_all_positions_BTV"][row, real])
        assert_close(pair[0], io["nsp_logit"][row])


@pytest.mark.parametrize("record", [True, False])
def test_equals_the_authors_objectives(record):
    weights, io, _ = load_reference("macaron/bert_macaron_pretrain")
    model, _ = from_macaron_bert(weights, 4, {"max_positions": 48})
    mask = (io["src_tokens"] != 1).long()
    inputs = {"input_ids": io["src_tokens"], "attention_mask": mask}
    # the release numbers the first sentence 1, and padding 1
    inputs["token_type_ids"] = torch.where(mask == 1, 1 - io["segment"], 0)
    words = {"labels": torch.where(io["output_mask"] == 1, io["target"], -100)}
    pairs = {"next_sentence_label": 1 - io["label"]}
    out = model(**inputs, **words, **pairs, output_hidden_states=record)
    assert_close(out.prediction_logits[words["labels"] != -100], io["mlm_logits"])
    assert_close(out.seq_relationship_logits[:, 0], io["nsp_logit"])
    # the release, too, weighs the mean over pairs like the mean over words
    for number, labels, name in ((9, words, "mlm_loss"), (3, pairs, "nsp_loss"), (9, words | pairs, "loss")):
        loss = number * model(**inputs, **labels, output_hidden_states=record).loss
        torch.testing.assert_close(loss, io[f"{name}_sum"][0], atol=1e-4, rtol=0)


RELEASED = {"encoder_normalize_before": True, "act_fn": "gelu", "max_positions": 48}
OTHERS = {"encoder_normalize_before": False, "act_fn": "relu"}
BERTS = [
    (bert("tied"), RELEASED | {"macaron": True}),
    (bert("tied", norm_affine=True, final_norm=True), RELEASED | {"macaron": True}),
    (bert("tied"), RELEASED | {"encoder_normalize_before": False, "macaron": True}),
    (bert("untied", norm_affine=True, learned=True), OTHERS | {"macaron": True}),
    # the plain BERT of the same code
    (bert("tied", macaron=False), RELEASED),
    (bert("tied", macaron=False), OTHERS),
    # fine-tuned
    (bert(3), RELEASED | {"macaron": True}),
    (bert(1, macaron=False), RELEASED),
]


@pytest.mark.parametrize(("weights", "options"), BERTS)
@torch.no_grad()
def test_the_authors_berts_score_as_before(weights, options, convert):
    pre_trained, naive = "embed_out" in weights, NaiveFairseq(weights, options)
    folder = convert(weights, **options)
    auto_class = AutoModelForPreTraining if pre_trained else AutoModelForSequenceClassification
    model = auto_class.from_pretrained(folder, dtype=torch.float64)
    assert model.config.sublayer_order == ("(fsf)2" if options.get("macaron") else "(sf)2")
    out = model(ROWS, attention_mask=(ROWS != 1).long(), token_type_ids=1 - SEGMENTS)
    for row, ids in enumerate(ROWS):
        real = ids != 1
        expected = bert_scores(naive, ids[real], SEGMENTS[row, real])
        if pre_trained:
            assert_close(out.prediction_logits[row, real], expected[0])
            assert_close(out.seq_relationship_logits[row, 0], expected[1][0])
        else:
            assert_close(out.logits[row], expected)


def test_the_authors_berts_train_as_before(convert):
    options = {"dropout": 0.25, "attention_dropout": 0.15, "relu_dropout": 0.05, "max_positions": 48}
    config = AutoModel.from_pretrained(convert(bert(1), **options, criterion="mean_squared_error")).config
    assert (config.dropout, config.attention_dropout, config.activation_dropout) == (0.25, 0.15, 0.05)
    assert (config.max_position_embeddings, config.num_labels, config.problem_type) == (48, 1, "regression")


def test_a_macaron_bert_has_its_own_order_and_all_weights(tmp_path, convert):
    weights = bert("tied")
    folder = convert(weights)
    torch.save({"model": weights}, tmp_path / "bare.pt")
    with pytest.raises(ValueError, match="leave out --sublayer_order; this source takes no order but its own"):
        main([str(tmp_path / "bare.pt"), f"{folder}2", "--num_attention_heads=4", "--sublayer_order=fsf"])
    del weights["encoder.layers.1.self_attn.in_proj_weight"]
    with pytest.raises(ValueError, match=r"has no \['encoder.layers.1.self_attn.q_proj.weight'\]; is it of another"):
        from_macaron_bert(weights, 4)


def test_options_that_no_bert_here_has_are_refused(convert):
    with pytest.raises(ValueError, match="option no_token_positional_embeddings=True cannot be converted; only models"):
        convert(bert("tied"), no_token_positional_embeddings=True)
    with pytest.raises(ValueError, match="fairseq's activation 'maxout' cannot be converted"):
        convert(bert("tied"), act_fn="maxout")


def output_of(naive):
    names = ("output_projection.weight", "embed_out", "embed_tokens.weight")
    return next(naive.weights[f"decoder.{name}"] for name in names if f"decoder.{name}" in naive.weights)


def lm_scores(naive, ids):
    return naive.run("decoder", ids) @ output_of(naive).T


def test_the_naive_network_is_fairseqs_language_model():
    weights, io, meta = load_reference("sandwich/lm_tied_noadaptive")
    naive = NaiveFairseq(weights, meta["args"])
    for ids, expected in zip(io["src_tokens"], io["interleaved.output"], strict=True):
        assert_close(lm_scores(naive, ids), expected)


LANGUAGE_MODELS = [
    (language_model(), {}),
    (language_model(output="tied"), {"activation_fn": "gelu"}),
    (language_model(final_norm=True, output="decoder.output_projection.weight"), {"no_scale_embedding": True}),
    (language_model(output="decoder.embed_out"), {"decoder_normalize_before": False}),
]


@pytest.mark.parametrize(("weights", "options"), LANGUAGE_MODELS)
@torch.no_grad()
def test_fairseqs_language_models_score_as_before(weights, options, convert):
    model = AutoModelForCausalLM.from_pretrained(convert(weights, **options), dtype=torch.float64)
    logits = model(ROWS, attention_mask=(ROWS != 1).long()).logits
    for row, ids in enumerate(ROWS):
        real = ids != 1
        assert_close(logits[row, real], lm_scores(NaiveFairseq(weights, options), ids[real]))


def test_fairseqs_language_models_train_as_before(convert):
    dropouts = {"dropout": 0.25, "attention_dropout": 0.15, "activation_dropout": 0.05}
    lengths = {"max_target_positions": None, "tokens_per_sample": 48}
    config = AutoModel.from_pretrained(convert(language_model(), **dropouts, **lengths)).config
    assert {name: getattr(config, name) for name in dropouts} == dropouts
    assert config.max_position_embeddings == 48


def translation_scores(naive, source, target):
    return naive.run("decoder", target, naive.run("encoder", source)) @ output_of(naive).T


@pytest.mark.parametrize(
    "name", ["iot/baseline_dynamicconv", "macaron/mt_macaron_preln", "macaron/mt_transformer_preln"]
)
def test_the_naive_network_is_fairseqs_encoder_decoder(name):
    weights, io, meta = load_reference(name)
    naive = NaiveFairseq(weights, meta["args"])
    for source, target, expected in zip(io["src_tokens_leftpad"], io["prev_output_tokens"], io["logits"], strict=True):
        real = target != 1
        assert_close(translation_scores(naive, source[source != 1], target[real]), expected[real])


POST = {"encoder_normalize_before": False, "decoder_normalize_before": False}
TRANSLATORS = {
    "sinusoids": (translation_stacks(), POST),
    "learned positions": (translation_stacks(learned=True), POST | {"activation_fn": "gelu"}),
    "pre-norm, an output of its own": (
        translation_stacks(final_norm=True) | {"decoder.output_projection.weight": torch.randn(61, WIDTH)},
        {"no_scale_embedding": True},
    ),
    "older, an output of its own": (translation_stacks() | {"decoder.embed_out": torch.randn(61, WIDTH)}, POST),
    # other embeddings of one size are other embeddings, too
    "own words": (translation_stacks() | {"encoder.embed_tokens.weight": torch.randn(61, WIDTH)}, POST),
    "own vocabulary": (translation_stacks() | {"encoder.embed_tokens.weight": torch.randn(67, WIDTH)}, POST),
    "macaron": (translation_stacks(macaron=True, final_norm=True), {"act_fn": "gelu"}),
}


@pytest.mark.parametrize("kind", TRANSLATORS)
@torch.no_grad()
def test_fairseqs_encoder_decoders_score_as_before(kind, convert):
    weights, options = TRANSLATORS[kind]
    model = AutoModelForSeq2SeqLM.from_pretrained(convert(weights, **options), dtype=torch.float64)
    config, targets = model.config, tokens(3, 7)
    assert config.encoder_vocab_size == (67 if "vocabulary" in kind else None)
    assert (config.share_encoder_decoder_embeddings, config.tie_word_embeddings) == (
        not kind.startswith("own"),
        "its" not in kind,
    )
    logits = model(ROWS, attention_mask=(ROWS != 1).long(), decoder_input_ids=targets).logits
    for row, ids in enumerate(ROWS):
        assert_close(logits[row], translation_scores(NaiveFairseq(weights, options), ids[ids != 1], targets[row]))


@pytest.mark.parametrize("pre_norm", [True, False])
# both kinds in one stack, and an encoder that is deeper
@pytest.mark.parametrize("kernels", [("dd", "dd"), ("ll", "ll"), ("dl", "dl"), ("ddl", "ld")])
@pytest.mark.parametrize("rows", [WIDTH, 2 * WIDTH])
@torch.no_grad()
def test_convolutions_score_as_before_with_and_without_gates(rows, kernels, pre_norm, convert):
    weights = fairseq_stack("encoder", final_norm=pre_norm, conv_rows=rows, kernels=kernels[0])
    weights |= fairseq_stack("decoder", final_norm=pre_norm, conv_rows=rows, kernels=kernels[1], crosses=True)
    options = {"encoder_normalize_before": pre_norm, "decoder_normalize_before": pre_norm}
    model = AutoModelForSeq2SeqLM.from_pretrained(convert(weights, **options), dtype=torch.float64)
    assert model.config.gated_convolutions == (rows > WIDTH)
    orders = ["".join(kernel + rest for kernel in side) for side, rest in zip(kernels, ("f", "cf"), strict=True)]
    assert [*map(expand, model.config.orders.values())] == orders
    targets = tokens(3, 7)
    logits = model(ROWS, attention_mask=(ROWS != 1).long(), decoder_input_ids=targets).logits
    for row, ids in enumerate(ROWS):
        assert_close(logits[row], translation_scores(NaiveFairseq(weights, options), ids[ids != 1], targets[row]))


def test_layers_that_lie_in_the_same_memory_are_told_apart(tmp_path):
    weights = fairseq_stack("decoder")
    for name in [name for name in weights if ".layers.1." in name]:
        weights[name] = weights[name.replace(".layers.1.", ".layers.0.")]
    torch.save({"model": weights}, tmp_path / "checkpoint.pt")
    files = [str(tmp_path / name) for name in ("checkpoint.pt", "ours", "report.json")]
    main([*files[:2], "--num_attention_heads=4", "--report", files[2]])
    taken_over = json.loads((tmp_path / "report.json").read_text())["taken_over"]
    for layer in range(2):
        name = f"model.layers.{2 * layer + 1}.mixer.fc1.weight"
        assert taken_over[f"decoder.layers.{layer}.fc1.weight"] == {name: "whole"}


def test_a_joint_projection_holds_three_of_one_size():
    with pytest.raises(ValueError, match=r"in_proj_weight of shape \(49, 16\) does not hold 3 parts of one size"):
        upgrade({"decoder.layers.0.self_attn.in_proj_weight": torch.ones(49, 16)})


def test_a_language_model_that_does_not_fit_is_one_sentence():
    state = fairseq_stack("decoder")
    with pytest.raises(ValueError, match="the order 'sf2' does not fit a checkpoint with 2 s, 2 f"):
        from_fairseq_lm(state, 2, sublayer_order="sff")
    with pytest.raises(ValueError, match="the order 'sd' does not fit a checkpoint with 1 s"):
        place("sd", {"s": [{"norm.weight": torch.ones(1)}]})
    with pytest.raises(ValueError, match=r"no place for \['decoder.project_in_dim.weight'\]"):
        from_fairseq_lm(state | {"decoder.project_in_dim.weight": torch.ones(1)}, 2)
    for missing in ("decoder.layers.1.fc1.bias", "decoder.embed_tokens.weight"):
        with pytest.raises(ValueError, match=rf"has no \W*{missing}.*; is it of another kind"):
            from_fairseq_lm({name: tensor for name, tensor in state.items() if name != missing}, 2)
    with pytest.raises(ValueError, match=r"no place for \['decoder.layers.0.macaron_fc1.bias', .*in a language model"):
        from_fairseq_lm(fairseq_stack("decoder", macaron=True), 4, sublayer_order="(fsf)2")

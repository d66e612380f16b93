import pytest
import torch

from sublayers.training.lab.bench import contenders, seq2seq as bench_seq2seq

OURS = ["sublayers (sf)2:(scf)2", "sublayers (fsf)2:(fscf)2"]


@pytest.fixture
def args(tiny):
    return tiny(orders=["(sf)2:(scf)2", "(fsf)2:(fscf)2"])


def test_models_have_barts_parameters_whatever_the_order(args):
    models = bench_seq2seq.encoder_decoders(args)
    parameters = contenders.parameters(models)
    assert parameters[OURS[0]] == parameters["BART"]
    # two narrow feed-forward sublayers have one bias and one norm more than a wide one
    assert parameters[OURS[1]] == parameters["BART"] + 4 * 3 * 16


def test_batches_are_padded_as_their_lengths_say(args):
    batch = bench_seq2seq.make_batch("mixed", args)
    assert batch["attention_mask"].sum(1).tolist() == bench_seq2seq.SOURCE_LENGTHS
    assert (batch["input_ids"] == bench_seq2seq.PAD).sum() == (batch["attention_mask"] == 0).sum()
    assert (batch["labels"] != -100).sum(1).tolist() == bench_seq2seq.TARGET_LENGTHS


def test_counts_the_work_of_all_matrix_products(args):
    model = bench_seq2seq.encoder_decoders(args)[OURS[0]].eval()
    ids = torch.ones(2, 6, dtype=torch.long)
    # four projections, two feed-forward maps, and what 6 queries of each row and head do, in each of two layers
    products = 2 * (12 * (4 * 16 * 16 + 2 * 16 * 64) + 2 * 2 * 6 * 6 * 8 * 2)
    with torch.no_grad():
        counted = contenders.gigaflops(lambda: model.get_encoder()(ids))
    assert counted == pytest.approx(2 * products / 1e9)


def test_decoding_makes_exactly_the_new_tokens(args):
    for name, model in bench_seq2seq.encoder_decoders(args).items():
        batch = bench_seq2seq.make_batch("2x6", args)
        if name != "x-transformers":
            calls = bench_seq2seq.transformers_calls(model.eval(), batch, 3)
            assert calls["greedy"]().shape == calls["beam 5"]().shape == (2, 4)

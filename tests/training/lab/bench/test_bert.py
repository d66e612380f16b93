from math import prod

import pytest
from transformers import AutoModelForSequenceClassification

from sublayers.training.lab.bench import bert as bench_bert, contenders


@pytest.fixture
def args(tiny):
    return tiny(orders=["(sf)2", "s2f2"], peer="bert")


def test_counts_every_matrix_product(args):
    model = bench_bert.berts(args, AutoModelForSequenceClassification)["sublayers s2f2"].eval()
    batch = bench_bert.make_batch("2x6", args)
    # keys and values of both attention sublayers and the first's queries and outputs run on 12 tokens, and what is
    # behind on 2
    maps = [(12, 16, 16)] * 6 + [(2, 16, 16)] * 2 + [(2, 16, 64), (2, 64, 16)] * 2 + [(2, 16, 16), (2, 16, 2)]
    # 6 queries and one of each row and head, with 6 keys and values
    attention = 2 * 2 * (6 + 1) * 6 * 8 * 2
    assert contenders.gigaflops(lambda: model(**batch)) == pytest.approx(2 * (sum(map(prod, maps)) + attention) / 1e9)


def test_batches_have_the_lengths_and_labels_that_they_should(args):
    batch = bench_bert.make_batch("mixed", args)
    assert batch["attention_mask"].sum(1).tolist() == bench_bert.MIXED_LENGTHS
    assert batch["input_ids"].shape == (32, 78)
    labels = bench_bert.make_labels("MLM training step", batch, args)["labels"]
    share = (labels != -100).sum() / batch["attention_mask"].sum()
    assert 0.13 < share < 0.17
    assert not (labels[batch["attention_mask"] == 0] != -100).any()


def test_the_default_orders_are_those_of_the_papers_and_attention_first(tiny):
    default = bench_bert.default_orders(tiny(layers=12, peer="bert"))
    assert default == ["(sf)12", "(sff)5f9", "s8(sf)4f8", "s12f12", "s5f19"]
    modern = bench_bert.default_orders(tiny(layers=6, peer="modernbert"))
    assert modern == ["sfwfwfsfwfwf", "swwswwf6", "swf10", "sfwfwf"]


def test_a_modern_bert_has_the_same_sublayers(tiny):
    args = tiny(layers=3, orders=["sfwfwf", "(sf)3"], peer="modernbert")
    models = bench_bert.berts(args, AutoModelForSequenceClassification)
    # the token types and the biases and norms of heads are not the same
    bodies = [model.base_model.layers for model in models.values()]
    first, *ours = [sum(parameter.numel() for parameter in body.parameters()) for body in bodies]
    assert ours == [first, first]


def test_distilbert_has_half_of_berts_layers(args):
    models = bench_bert.berts(args, AutoModelForSequenceClassification)
    assert [models[name].config.num_hidden_layers for name in ("BERT", "DistilBERT")] == [2, 1]

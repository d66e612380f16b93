import pytest
import torch

from sublayers.training.lab.bench import spans


def test_heads_have_learned_the_span_and_nothing_else_differs(tiny):
    args = tiny(orders=["s"], spans=[64, 256], batch_size=2)
    short, long = spans.character_models(args).values()
    assert [model.span_attentions()[0].read_length for model in (short, long)] == [64, 256]
    weights = [{name: w for name, w in model.state_dict().items() if "span" not in name} for model in (short, long)]
    assert all(torch.equal(weight, weights[1][name]) for name, weight in weights[0].items())
    train_step, _ = spans.comparison(args).tasks
    short, long = train_step.work.values()
    # queries and output of 12 tokens, keys and values of these and the span; content and mix, distances
    products = [2 * (24 + span) * 16 + 2 * 12 * (12 + span) + 12 * span for span in args.spans]
    assert long / short == pytest.approx(products[1] / products[0], rel=0.05)

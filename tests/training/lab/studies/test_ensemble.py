import pytest
import torch

from sublayers import (
    IOTSeq2SeqConfig,
    IOTSeq2SeqForConditionalGeneration,
    MacaronSeq2SeqConfig,
    MacaronSeq2SeqForConditionalGeneration,
)
from sublayers.training.lab.studies.ensemble import Seq2SeqEnsemble

pytestmark = pytest.mark.slow

PAD, EOS, STEPS, BEAMS = 1, 2, 5, 3
SIZES = {"vocab_size": 24, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "dropout": 0.0}
ENDLESS = {"max_new_tokens": STEPS, "min_new_tokens": STEPS, "eos_token_id": None, "do_sample": False}
SCORES = {"return_dict_in_generate": True, "output_scores": True}


def randomized(model, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # tokens that differ more than what the sublayers add, or else all sentences are alike to the predictor
            if parameter.ndim > 1:
                parameter.normal_(std=1.0 if "embed" in name else 0.3, generator=generator)
    model.generation_config.num_beams = 1
    return model.eval()


def iot(seed, **options):
    config = IOTSeq2SeqConfig(**SIZES, num_encoder_blocks=1, num_decoder_blocks=2, **options)
    return randomized(IOTSeq2SeqForConditionalGeneration(config), seed)


def macaron(seed):
    config = MacaronSeq2SeqConfig(**SIZES, encoder_sublayer_order="fsf", decoder_sublayer_order="(fscf)2")
    return randomized(MacaronSeq2SeqForConditionalGeneration(config), seed)


@pytest.fixture
def batch():
    """Sources of different length, padded on the right."""
    ids = torch.randint(3, 24, (5, 7), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(7) < torch.tensor([7, 3, 5, 7, 2])[:, None]
    return {"input_ids": ids.masked_fill(~mask, PAD), "attention_mask": mask.long()}


def sources(batch):
    return [ids[ids != PAD][None] for ids in batch["input_ids"]]


@torch.no_grad()
def log_of_mean(models, source, targets):
    """Scores of the next token of every target (rows, length), all run anew for one source."""
    rows = source.expand(len(targets), -1)
    probabilities = [
        model(rows, decoder_input_ids=targets, use_cache=False).logits[:, -1].softmax(-1) for model in models
    ]
    return (sum(probabilities) / len(models)).log()


def naive_beams(models, source, number):
    """The best target and its score for each token, where none ends early."""
    beams = [(0.0, [EOS])]
    for _ in range(STEPS):
        scores = log_of_mean(models, source, torch.tensor([row for _, row in beams]))
        longer = [
            (total + score, [*row, token])
            for (total, row), own in zip(beams, scores.tolist(), strict=True)
            for token, score in enumerate(own)
        ]
        beams = sorted(longer, reverse=True)[:number]
    score, row = beams[0]
    return torch.tensor(row), score / STEPS


@pytest.mark.parametrize("beams", [1, BEAMS])
def test_a_model_with_itself_writes_what_it_writes_alone(batch, beams):
    for model in (iot(0), macaron(0)):
        options = SCORES | {"num_beams": beams, "max_new_tokens": STEPS}
        alone = model.generate(**batch, **options)
        together = Seq2SeqEnsemble([model, model]).generate(**batch, **options)
        assert torch.equal(together.sequences, alone.sequences)
        if beams > 1:
            torch.testing.assert_close(together.sequences_scores, alone.sequences_scores)


@pytest.mark.full
def test_two_models_take_the_mean_of_their_probabilities(batch):
    families = [[iot(0), iot(1)], [iot(2), macaron(1)], [iot(3, encoder_orders=["sf", "fs"]), iot(4)]]
    for models in families:
        orders = models[0].get_encoder()(**batch).decoder_order
        # or else no batch mixes orders
        assert len(orders.unique()) > 1
        ensemble = Seq2SeqEnsemble(models)
        written = ensemble.generate(**batch, **ENDLESS)
        best = ensemble.generate(**batch, **ENDLESS, **SCORES, num_beams=BEAMS)
        for i, source in enumerate(sources(batch)):
            assert torch.equal(written[i], naive_beams(models, source, 1)[0])
            expected, score = naive_beams(models, source, BEAMS)
            assert torch.equal(best.sequences[i], expected)
            torch.testing.assert_close(best.sequences_scores[i].item(), score, rtol=1e-4, atol=1e-5)
        without_cache = ensemble.generate(**batch, **ENDLESS, num_beams=BEAMS, use_cache=False)
        assert torch.equal(without_cache, best.sequences)


def test_generates_as_its_first_member_is_set(batch):
    models, options = [macaron(0), macaron(1)], {"num_beams": BEAMS, "max_new_tokens": 4, "min_new_tokens": 4}
    expected = Seq2SeqEnsemble(models).generate(**batch, **options)
    models[0].generation_config.update(**options)
    written = Seq2SeqEnsemble(models).generate(**batch)
    assert written.shape == (5, 5)
    assert torch.equal(written, expected)

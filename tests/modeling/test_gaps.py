"""Padding between the tokens of a row: they are read as if it were not there."""

import pytest
import torch
from common import PAD, tokens
from families import FAMILIES, TODAY, build
from transformers import AutoModel, AutoModelForCausalLM, DynamicCache

LANGUAGE_MODELS = [family for family, (_, head, _) in FAMILIES.items() if head is AutoModelForCausalLM]
RECURRENT = ["par_transformer_xl", "sandwich_char_lm"]
# the last two rows are also padded on their left or right
MASK = torch.tensor(
    [
        [1, 1, 0, 1, 1, 0, 0, 1, 1],
        [0, 0, 1, 1, 0, 1, 1, 1, 1],
        [1, 0, 1, 1, 1, 1, 0, 0, 0],
    ]
)
READ = [row.bool() for row in MASK]


def assert_reads_tokens_alone(model, **options):
    ids = tokens(3, 9)
    if not model.config.is_encoder_decoder:
        found = model(ids, attention_mask=MASK, **options).last_hidden_state
        for row, real, states in zip(ids, READ, found, strict=True):
            alone = model(row[real][None], **options).last_hidden_state[0]
            torch.testing.assert_close(states[real], alone, atol=1e-5, rtol=1e-5)
        return
    target = ids.flip(1)
    masks = {"attention_mask": MASK, "decoder_attention_mask": MASK.flip(0)}
    found = model(input_ids=ids, decoder_input_ids=target, **masks, **options).last_hidden_state
    for i, states in enumerate(found):
        source, written = ids[i][READ[i]][None], target[i][READ[-1 - i]][None]
        alone = model(input_ids=source, decoder_input_ids=written, **options).last_hidden_state[0]
        torch.testing.assert_close(states[READ[-1 - i]], alone, atol=1e-5, rtol=1e-5)


CASES = [(family, {}) for family in FAMILIES]
CASES += [(family, TODAY) for family in ("sandwich_lm", "par_bert", "sandwich_seq2seq")]
# memory and spans are counted in tokens
CASES += [
    ("par_transformer_xl", {"memory_length": 3, "same_length": same, "clamp_length": clamp, "use_cache": False})
    for same in (False, True)
    for clamp in (None, 2)
]
CASES += [
    ("sandwich_char_lm", {"use_cache": False, **spans})
    for spans in ({"attention_span": 3}, {"attention_span": 4, "span_ramp_size": 2, "initial_span_share": 0.5})
]


@pytest.mark.parametrize(("family", "options"), CASES)
@pytest.mark.parametrize("asked", [{}, {"output_hidden_states": True}], ids=["packed", "whole"])
def test_states_are_those_of_the_tokens_alone(family, options, asked):
    assert_reads_tokens_alone(build(family, AutoModel, **options), **asked)


@pytest.mark.parametrize("family", LANGUAGE_MODELS)
@pytest.mark.parametrize("options", [{}, {"use_cache": False}, {"num_beams": 3}, {"prefill_chunk_size": 4}])
def test_a_prompt_is_continued_as_without_its_gaps(family, options):
    model = build(family)
    ids = tokens(3, 9).masked_fill(MASK == 0, PAD)
    options = options | {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    # a prompt that ends in padding is none that transformers continues
    written = model.generate(ids[:2], attention_mask=MASK[:2], **options)[:, 9:]
    for row, real, found in zip(ids, READ, written, strict=False):
        alone = model.generate(row[real][None], **options)[0, int(real.sum()) :]
        assert torch.equal(found, alone)


@pytest.mark.parametrize("family", LANGUAGE_MODELS)
@pytest.mark.parametrize("cut", [1, 3, 6, 8])
def test_gaps_in_a_cache_are_none(family, cut):
    model = build(family)
    ids, cache = tokens(3, 9), None if family in RECURRENT else DynamicCache()
    first = model(ids[:, :cut], attention_mask=MASK[:, :cut], cache=cache, use_cache=True)
    second = model(ids[:, cut:], attention_mask=MASK, cache=first.cache)
    for row, real, scores in zip(ids, READ, second.logits, strict=True):
        alone = model(row[real][None]).logits[0][int(real[:cut].sum()) :]
        torch.testing.assert_close(scores[real[cut:]], alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", RECURRENT)
def test_a_graph_takes_any_gaps(family):
    model = build(family, AutoModel, use_cache=False)
    batch = {"input_ids": tokens(3, 9), "attention_mask": torch.ones_like(MASK)}
    graph = torch.export.export(model, (), batch, strict=False).module()
    batch["attention_mask"] = MASK
    wanted = model(**batch).last_hidden_state
    torch.testing.assert_close(graph(**batch).last_hidden_state, wanted, atol=1e-5, rtol=1e-5)

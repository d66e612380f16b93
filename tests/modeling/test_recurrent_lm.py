"""The language models with memory: segments, memory as a cache, and nothing that limits a text."""

import pytest
import torch
from common import PAD, VOCAB, assert_same, backward, tokens
from common_generation import GREEDY, STEPS, naive_greedy
from families import LMS, ROWS, every_row
from transformers import pipeline

from sublayers.training.data.tokenizers import train_tokenizer

every_recurrent = every_row(*LMS[1:])
# the configurations' names for how many tokens are remembered
LENGTHS = {"par_transformer_xl": "memory_length", "sandwich_char_lm": "attention_span"}


def close(found, expected):
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def short(row, *orders, length=6, **options):
    return row.main(*orders, **{LENGTHS[row.family]: length} | options)


def segments(model, ids: torch.Tensor, cuts: list[int], between=lambda: None) -> torch.Tensor:
    """Logits of a text that is read in segments, with memory."""
    memory, logits = model.empty_memory(len(ids)), []
    for start, end in zip([0, *cuts], [*cuts, ids.shape[1]], strict=True):
        out = model(ids[:, start:end], memory=memory)
        memory = out.memory
        logits.append(out.logits)
        between()
    return torch.cat(logits, dim=1)


@every_recurrent
@torch.no_grad()
def test_a_text_in_segments_scores_as_a_whole(row):
    for orders in row.all_orders:
        model = row.main(*orders)
        for cuts in ([7, 14], [1, 2, 3], [19]):
            close(segments(model, tokens(2, 20), cuts), model(tokens(2, 20)).logits)


@every_recurrent
@torch.no_grad()
def test_rows_do_not_depend_on_each_other_or_on_what_was_generated_between(row):
    model = short(row)
    together = segments(model, tokens(3, 20), [6, 12])
    alone = segments(model, tokens(3, 20)[1:2], [6, 12], lambda: model.generate(tokens(2, 7), **GREEDY))
    close(alone[0], together[1])


@every_recurrent
def test_memory_is_what_attention_read_and_no_longer_than_it_may_be(row):
    for orders in row.orders:
        model = short(row, *orders)
        out = model(tokens(2, 20), memory=model.empty_memory(2), output_hidden_states=True)
        letters = model.model.layers.order
        inputs = [s for s, letter in zip(out.hidden_states, letters, strict=False) if letter == "s"]
        assert len(out.memory) == model.config.num_hidden_layers
        for remembered, states in zip(out.memory, inputs, strict=True):
            assert torch.equal(remembered, states[:, -6:])
            assert not remembered.requires_grad
        # they keep nothing else alive
        for remembered in (*out.memory, *model(tokens(2, 4), memory=out.memory).memory):
            assert remembered.untyped_storage().nbytes() == remembered.nbytes


@every_recurrent
@torch.no_grad()
def test_remembers_the_whole_segment_whatever_is_read_of_it(row):
    for orders in row.orders:
        model = row.main(*orders)
        memory = model(tokens(2, 9), memory=model.empty_memory(2)).memory
        whole = model(tokens(2, 7), memory=memory)
        # more of one row than of the other
        mask = tokens(2, 7) % 3 == 0
        for keep, expected in ((mask, whole.logits[mask]), (2, whole.logits[:, -2:])):
            out = model(tokens(2, 7), memory=memory, logits_to_keep=keep)
            close((out.logits, out.memory), (expected, whole.memory))


@every_recurrent
@torch.no_grad()
def test_a_prompt_is_continued_as_without_its_gaps(row):
    mask = torch.tensor([[1, 1, 0, 1, 1, 0, 0, 1, 1], [0, 0, 1, 1, 0, 1, 1, 1, 1]])
    batch = {"input_ids": tokens(2, 9).masked_fill(mask == 0, PAD), "attention_mask": mask}
    for orders in row.orders:
        model = row.main(*orders)
        expected = naive_greedy(model, batch)
        for options in ({}, {"use_cache": False}, {"prefill_chunk_size": 4}):
            assert torch.equal(model.generate(**batch, **GREEDY, **options)[:, -STEPS:], expected)


@torch.no_grad()
def test_memory_of_length_zero_is_none():
    model = short(ROWS["par_transformer_xl"], length=0)
    out = model(tokens(2, 9), memory=model.empty_memory(2))
    assert all(remembered.shape == (2, 0, 16) for remembered in out.memory)
    assert torch.equal(out.logits, model(tokens(2, 9)).logits)
    assert torch.equal(model(tokens(2, 9), memory=out.memory).logits, out.logits)
    batch = {"input_ids": tokens(3, 7), "attention_mask": torch.ones(3, 7, dtype=torch.long)}
    written = model.generate(**batch, **GREEDY, use_cache=False)
    assert torch.equal(written[:, -STEPS:], naive_greedy(model, batch))
    with pytest.raises(ValueError, match="a cache of memory_length=0 holds nothing; pass use_cache=False"):
        model.generate(**batch, **GREEDY)


@every_recurrent
def test_the_cache_of_generation_never_grows_beyond_the_memory(row):
    model = short(row)
    assert model(tokens(2, 9)).memory is None
    out = model.generate(tokens(2, 9), **GREEDY | {"max_new_tokens": 20}, return_dict_in_generate=True)
    # what the model makes, too
    for layer in (*out.cache.layers, *model(tokens(2, 9), use_cache=True).cache.layers):
        assert layer.keys.shape[2] <= 6


@every_recurrent
def test_a_pipeline_continues_a_text_longer_than_the_memory(row):
    tokenizer = train_tokenizer(["ada wrote the first program"], "wordpiece", VOCAB)
    model, text = short(row, vocab_size=len(tokenizer)), "ada wrote the first program " * 3
    generate = pipeline("text-generation", model=model, tokenizer=tokenizer)
    [found] = generate(text, max_new_tokens=8, do_sample=False, return_tensors=True)
    ids = tokenizer(text, return_tensors="pt").input_ids
    assert ids.shape[1] > 6
    assert found["generated_token_ids"] == model.generate(ids, max_new_tokens=8, do_sample=False)[0].tolist()


@every_recurrent
def test_gradients_stay_within_the_segment_with_checkpoints_and_without(row):
    for orders in row.orders:
        model = row.main(*orders).train()
        memory = model(tokens(2, 9), memory=model.empty_memory(2)).memory
        assert not any(remembered.requires_grad for remembered in memory)
        batch = {"input_ids": tokens(2, 9), "labels": tokens(2, 9), "memory": memory}
        expected = backward(model, model(**batch).loss)
        model.gradient_checkpointing_enable()
        assert_same(backward(model, model(**batch).loss), expected, atol=1e-6, rtol=1e-5)


@every_recurrent
def test_labels_of_the_next_segment_may_be_given(row):
    model, ids = row.main(), tokens(2, 10)
    scores = model(ids[:, :-1]).logits.log_softmax(-1).gather(-1, ids[:, 1:, None])
    loss = model(ids[:, :-1], shift_labels=ids[:, 1:]).loss
    torch.testing.assert_close(loss, -scores.mean())
    torch.testing.assert_close(model(ids[:, :-1], shift_labels=ids[:, 1:], num_items_in_batch=36).loss, loss / 2)


@every_recurrent
def test_says_in_one_sentence_what_memory_does_not_fit(row):
    order = "ses" if "num_experts" in row.options else "sfs"
    model = row.main(order)
    memory = model.empty_memory(2)
    for batch, message in [
        ({"memory": memory[:1]}, f"a memory of 1 attention sublayers does not fit '{order}', which has 2"),
        ({"input_ids": tokens(3, 3)}, r"shape \(2, 0, 16\) does not fit a batch of 3 rows and width 16"),
        ({"attention_mask": torch.ones(2, 3)}, "pass it alone"),
    ]:
        with pytest.raises(ValueError, match=message):
            model(**{"input_ids": tokens(2, 3), "memory": memory} | batch)
    with pytest.raises(ValueError, match="does not support Flash Attention"):
        model.set_attn_implementation("flash_attention_2")

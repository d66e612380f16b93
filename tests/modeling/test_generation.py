"""Every family that generates writes what a naive loop writes, with every cache, padded or not."""

import copy
from collections import Counter

import pytest
import torch
from common import EOS, PAD, tokens
from common_generation import BEAMS, GREEDY, SCORES, STATIC, STEPS, naive_greedy, sources
from families import BERTS, ENCODER_DECODERS, FAMILIES, ROWS, counts_gaps, every_row, padded
from transformers import DynamicCache, EncoderDecoderCache, GenerationMixin, StaticCache

# what a user may give as the first tokens of the target; the rows after the first are shorter
PROMPTS = torch.tensor([[EOS, 9, 5, 11], [PAD, EOS, 7, 8], [PAD, PAD, EOS, 6]])
every_generator = every_row(*(family for family in FAMILIES if family not in BERTS))


def beginnings(model) -> list[dict[str, torch.Tensor]]:
    """Batches to go on from, padded on their left and between tokens: texts, or sources with and without targets."""
    if model.config.is_encoder_decoder:
        start = {"decoder_input_ids": PROMPTS, "decoder_attention_mask": (PROMPTS != PAD).long()}
        return [sources(model), sources(model) | start]
    mask = torch.ones(3, 9, dtype=torch.long)
    mask[1, :4] = mask[2, :7] = 0
    if not counts_gaps(model.config):
        mask[:2, 6] = 0
    return [{"input_ids": tokens(3, 9).masked_fill(mask == 0, PAD), "attention_mask": mask}]


def remembers(orders) -> bool:
    """Whether something of the target is kept, by which a cache could count its tokens."""
    return bool({*orders[-1]} & {*"swmdlr"})


def caches(model, orders) -> list[dict]:
    """Settings with every cache that generation has, and caches of the user's own."""
    config, found = model.config, [{}, {"use_cache": False}]
    if not remembers(orders):
        return found
    if config.is_encoder_decoder:
        # which has no place for states
        own = [] if "r" in orders[-1] else [EncoderDecoderCache(DynamicCache(), DynamicCache())]
        own.append(EncoderDecoderCache(DynamicCache(config=config), DynamicCache(config=config)))
        own.append(EncoderDecoderCache(StaticCache(config, max_cache_len=12), StaticCache(config, max_cache_len=9)))
        return [*found, STATIC, *({"cache": cache} for cache in own)]
    own = [{"cache": StaticCache(config, max_cache_len=16)}] if config.model_type == "sandwich_lm" else []
    return [*found, STATIC, {"prefill_chunk_size": 3}, *own]


@every_generator
@torch.no_grad()
def test_generation_equals_a_naive_loop_with_every_cache(row):
    for orders in row.all_orders:
        model = row.main(*orders)
        for batch in beginnings(model):
            expected = naive_greedy(model, batch)
            for cache in caches(model, orders):
                written = model.generate(**batch, **GREEDY, **cache)
                assert torch.equal(written[:, -STEPS:], expected), (orders, cache)
                if "cache" in cache:
                    assert cache["cache"].get_seq_length() == written.shape[1] - 1


@every_generator
@pytest.mark.slow
@torch.no_grad()
def test_assisted_decoding_equals_plain_decoding(row):
    assistant = row.main(*row.some_orders[1])
    for orders in row.orders:
        model = row.main(*orders)
        if model.config.to_dict().get("attention_window"):
            # a cache of windows cannot be cropped
            continue
        batch = {name: rows[:1] for name, rows in beginnings(model)[0].items()}
        if "r" in orders[-1]:
            with pytest.raises(ValueError, match="Assisted decoding requires a cache that can be cropped"):
                model.generate(**batch, **GREEDY, prompt_lookup_num_tokens=3)
            continue
        expected = naive_greedy(model, batch, [{}])
        for options in ({"assistant_model": assistant}, {"prompt_lookup_num_tokens": 3}):
            for cache in ({}, *([] if model.config.is_encoder_decoder else [STATIC])):
                if cache and {*getattr(model.config, "layer_types", [])} == {"hybrid"}:
                    # transformers (5.24) takes back no tokens that such a slot counts
                    continue
                if not (options and cache) or "assistant_model" in options:
                    written = model.generate(**batch, **GREEDY, **options, **cache)
                    assert torch.equal(written[:, -STEPS:], expected), orders


def generic(model):
    """The same model with transformers' own treatment of beams: every candidate brings a copy of its source."""
    twin = copy.deepcopy(model)
    overrides = {
        "_expand_inputs_for_generation": GenerationMixin.__dict__["_expand_inputs_for_generation"],
        # a property that raises is as good as none
        "_reorder_cache": property(lambda self: self.no_such_method),
    }
    twin.__class__ = type(type(model).__name__, (type(model),), overrides)
    assert not hasattr(twin, "_reorder_cache")
    return twin


@every_generator
@torch.no_grad()
def test_beams_equal_those_with_a_copy_of_the_source_each_and_no_cache(row):
    options = BEAMS | SCORES | {"eos_token_id": EOS, "min_new_tokens": 2}
    for orders in row.all_orders:
        model = row.main(*orders)
        reference = generic(model) if model.config.is_encoder_decoder else model
        for batch in beginnings(model):
            expected = reference.generate(**batch, **options, use_cache=False)
            for cache in ({}, {"use_cache": False}, *([STATIC] if remembers(orders) else [])):
                found = model.generate(**batch, **options, **cache)
                torch.testing.assert_close(found.sequences_scores, expected.sequences_scores)
                # where targets have no positions, beams of the same words in other places tie
                assert torch.equal(found.sequences, expected.sequences) or not remembers(orders), orders


@every_generator
@torch.no_grad()
def test_continues_from_a_cache_at_any_split(row):
    for orders in row.all_orders:
        model = row.main(*orders)
        side = "decoder_" if model.config.is_encoder_decoder else ""
        ids, mask = f"{side}input_ids", f"{side}attention_mask"
        # without attention nothing but the mask tells how many tokens came before
        for is_masked in (True, False) if remembers(orders) else (True,):
            batch = padded(model)
            real = batch[mask].bool() if is_masked else torch.ones(3, 9, dtype=torch.bool)
            if not is_masked:
                del batch[mask]
            full = model(**batch).logits
            for split in (1, 3, 8):
                cut = {name: rows[:, :split] for name, rows in batch.items() if name in (ids, mask)}
                first, before, after = model(**batch | cut, use_cache=True), real[:, :split], real[:, split:]
                torch.testing.assert_close(first.logits[before], full[:, :split][before], atol=1e-5, rtol=1e-5)
                rest = batch | {ids: batch[ids][:, split:], "cache": first.cache}
                if side:
                    del rest["input_ids"]
                    rest["encoder_outputs"] = (first.encoder_last_hidden_state,)
                found = model(**rest, use_cache=True).logits
                torch.testing.assert_close(found[after], full[:, split:][after], atol=1e-5, rtol=1e-5)


@every_generator
@torch.no_grad()
def test_a_cache_may_be_given_by_its_old_name(row):
    model, batch = row.main(), {"input_ids": tokens(2, 12)}
    name = "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"
    batch |= {name: tokens(2, 12)}
    first = model(**batch | {name: batch[name][:, :5]}, use_cache=True)
    assert first.past_key_values is first.cache
    expected = model(**batch).logits[:, 5:]
    if model.config.is_encoder_decoder:
        batch = {"encoder_outputs": (first.encoder_last_hidden_state,)}
    batch[name] = tokens(2, 12)[:, 5:]
    with pytest.warns(FutureWarning, match="`past_key_values` is deprecated .* Use `cache` instead"):
        rest = model(**batch, past_key_values=first.cache).logits
    torch.testing.assert_close(rest, expected, atol=1e-5, rtol=1e-5)


every_translator = every_row(*ENCODER_DECODERS)


@every_translator
@torch.no_grad()
def test_samples_several_targets_of_a_source(row):
    for orders in row.some_orders:
        model = row.main(*orders)
        for beams in (1, 3):
            options, targets = GREEDY | {"do_sample": True, "num_return_sequences": 3, "num_beams": beams}, []
            for each in (model, generic(model)):
                torch.manual_seed(1)
                targets.append(each.generate(**sources(model), **options))
            assert torch.equal(*targets), orders
            assert len(targets[0].unique(dim=0)) > 3


@every_translator
@torch.no_grad()
def test_keys_of_a_source_are_computed_once_however_many_beams_read_them(row):
    for orders in row.orders:
        model, rows = row.main(*orders), Counter()
        stack = model.model.decoder.layers
        crossings = Counter(step.sublayer for step in stack.steps if stack.letters[step.sublayer] == "c")
        for depth in crossings:
            stack[depth].mixer.k_proj.register_forward_hook(
                lambda _, args, out, depth=depth, rows=rows: rows.update({depth: out[..., 0].numel()})
            )
        for options in (BEAMS, GREEDY, BEAMS | STATIC):
            rows.clear()
            model.generate(tokens(3, 9), **options)
            assert rows == {depth: times * 3 * 9 for depth, times in crossings.items()}


@pytest.mark.parametrize("family", ENCODER_DECODERS)
@torch.no_grad()
def test_a_static_cache_forgets_the_source_before(family):
    model = ROWS[family].main()
    batch = sources(model)
    shorter, others = {name: rows[:2, :6] for name, rows in batch.items()}, {"input_ids": tokens(3, 9).flip(0)}
    for given in (batch, shorter, batch | others):
        for options in (GREEDY, BEAMS):
            expected = model.generate(**given, **options, use_cache=False)
            assert torch.equal(model.generate(**given, **options, **STATIC), expected)


def test_returns_the_attention_of_every_beam():
    model = ROWS["sandwich_seq2seq"].main("sf", "sccf", attn_implementation="eager")
    out = model.generate(**sources(model), **BEAMS, output_attentions=True, return_dict_in_generate=True)
    assert len(out.encoder_attentions) == 1
    assert [len(step) for step in out.cross_attentions] == [2] * STEPS
    for weights in (weights for step in out.cross_attentions for weights in step):
        assert weights.shape == (12, 4, 1, 9)
        # nobody looks at padding
        assert not weights[4:8, ..., :4].any()
        assert not weights[8:, ..., -3:].any()

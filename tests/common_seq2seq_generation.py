"""The contract of encoder-decoders: generation and its caches."""

import copy
from collections import Counter

import pytest
import torch
from common import EOS, PAD, tokens, with_todays_parts
from common_seq2seq import Seq2SeqContract, padded, sources
from transformers import DynamicCache, EncoderDecoderCache, GenerationMixin, StaticCache

STEPS = 6
GREEDY = {"max_new_tokens": STEPS, "min_new_tokens": STEPS, "do_sample": False, "eos_token_id": None}
BEAMS = GREEDY | {"num_beams": 4, "num_return_sequences": 4, "length_penalty": 0.7}
SCORES = {"return_dict_in_generate": True, "output_scores": True}
# what a user may give as the first tokens of the target; the rows after the first are shorter
PROMPTS = torch.tensor([[EOS, 9, 5, 11], [PAD, EOS, 7, 8], [PAD, PAD, EOS, 6]])


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


class Seq2SeqGenerationContract(Seq2SeqContract):
    """What holds for the generation of targets."""

    def naive_greedy(self, model, batch, prompts=None, steps: int = STEPS, orders=({},) * 3) -> torch.Tensor:
        """Greedy decoding that runs all anew for every token, one source at a time and without padding."""
        rows = []
        for i, source in enumerate(sources(batch)):
            row = torch.tensor([[EOS]]) if prompts is None else prompts[i][prompts[i] != PAD][None]
            for _ in range(steps):
                logits = model(source, decoder_input_ids=row, use_cache=False, **orders[i]).logits
                row = torch.cat([row, logits[:, -1:].argmax(-1)], dim=1)
            rows.append(row[0, -steps:])
        return torch.stack(rows)

    @with_todays_parts
    @pytest.mark.parametrize(
        "cache",
        [{}, {"use_cache": False}, {"cache_implementation": "static"}],
        ids=lambda cache: "-".join(map(str, cache.values())) or "dynamic",
    )
    @pytest.mark.representatives(3)
    def test_cached_generation_of_padded_sources_equals_a_naive_loop(self, cache):
        for orders in self.all_pairs:
            if cache.get("cache_implementation") and "s" not in orders[1]:
                continue
            model = self.translator(*orders)
            actual = model.generate(**padded(), **GREEDY, **cache)
            assert torch.equal(actual[:, 1:], self.naive_greedy(model, padded())), orders

    @pytest.mark.parametrize("cache", [{}, {"cache_implementation": "static"}], ids=["dynamic", "static"])
    def test_generates_from_the_start_of_a_target(self, cache):
        mask = (PROMPTS != PAD).long()
        for orders in self.all_pairs:
            if cache and "s" not in orders[1]:
                continue
            model = self.translator(*orders)
            # all of one length
            prompts = PROMPTS[:1].expand(3, -1)
            actual = model.generate(**padded(), decoder_input_ids=prompts, **GREEDY, **cache)
            assert torch.equal(actual[:, 4:], self.naive_greedy(model, padded(), prompts)), orders
            # padded on the left
            given = {"decoder_input_ids": PROMPTS, "decoder_attention_mask": mask}
            actual = model.generate(**padded(), **given, **GREEDY, **cache)
            assert torch.equal(actual[:, 4:], self.naive_greedy(model, padded(), PROMPTS)), orders

    def test_reads_a_cache_of_the_users_own(self):
        for orders in self.pairs:
            model = self.translator(*orders)
            expected = self.naive_greedy(model, padded())
            config = model.config
            for cache in (
                EncoderDecoderCache(DynamicCache(), DynamicCache()),
                EncoderDecoderCache(DynamicCache(config=config), DynamicCache(config=config)),
                EncoderDecoderCache(StaticCache(config, max_cache_len=12), StaticCache(config, max_cache_len=9)),
            ):
                actual = model.generate(**padded(), **GREEDY, cache=cache)
                assert torch.equal(actual[:, 1:], expected), orders
                assert cache.get_seq_length() == STEPS

    def test_a_cache_may_be_given_by_its_old_name(self):
        model, target = self.translator(), tokens(3, 10)
        first = model(**padded(), decoder_input_ids=target[:, :4], use_cache=True)
        assert first.past_key_values is first.cache
        source = {"encoder_outputs": (first.encoder_last_hidden_state,), "attention_mask": padded()["attention_mask"]}
        with pytest.warns(FutureWarning, match="`past_key_values` is deprecated .* Use `cache` instead"):
            rest = model(**source, decoder_input_ids=target[:, 4:], past_key_values=first.cache).logits
        expected = model(**padded(), decoder_input_ids=target).logits[:, 4:]
        torch.testing.assert_close(rest, expected, atol=1e-5, rtol=1e-5)

    def test_checkpoints_leave_a_cache_alone(self):
        for orders in self.pairs:
            model = self.translator(*orders).train()
            model.gradient_checkpointing_enable()
            cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
            states = model.model(**padded(), decoder_input_ids=tokens(3, 10), cache=cache).last_hidden_state
            states.sum().backward()
            assert cache.get_seq_length() == 0

    @with_todays_parts
    def test_continues_from_a_cache_at_any_split(self):
        target, mask = tokens(3, 10), torch.ones(3, 10, dtype=torch.long)
        mask[0, :2] = 0
        for orders in self.all_pairs:
            model = self.translator(*orders)
            # without self-attention nothing but the mask tells how many tokens came before
            for padding in ({"decoder_attention_mask": mask}, *([{}] if "s" in orders[1] else [])):
                full = model(**padded(), decoder_input_ids=target, **padding).logits
                for split in (1, 4, 9):
                    start = {name: value[:, :split] for name, value in padding.items()}
                    first = model(**padded(), decoder_input_ids=target[:, :split], use_cache=True, **start)
                    rest = model(
                        encoder_outputs=(first.encoder_last_hidden_state,),
                        attention_mask=padded()["attention_mask"],
                        decoder_input_ids=target[:, split:],
                        cache=first.cache,
                        **padding,
                    )
                    for part, expected in ((first, full[:, :split]), (rest, full[:, split:])):
                        real = padding.get("decoder_attention_mask", torch.ones(3, 10))
                        real = (real[:, :split] if part is first else real[:, split:]).bool()
                        torch.testing.assert_close(part.logits[real], expected[real], atol=1e-5, rtol=1e-5)

    @with_todays_parts
    @pytest.mark.parametrize("prompted", [True, False])
    def test_beams_equal_those_with_a_copy_of_the_source_each_and_no_cache(self, prompted):
        prompt = {"decoder_input_ids": PROMPTS, "decoder_attention_mask": (PROMPTS != PAD).long()} if prompted else {}
        options = BEAMS | SCORES | {"eos_token_id": EOS, "min_new_tokens": 2}
        for orders in [*self.pairs, *self.without_self_attention]:
            model = self.translator(*orders)
            # where targets have no positions, beams of the same words in other places tie
            ties = orders in self.without_self_attention
            reference = model if ties else generic(model)
            expected = reference.generate(**padded(), **prompt, **options, use_cache=False)
            for cache in ({}, {"use_cache": False}, {"cache_implementation": "static"}):
                if "cache_implementation" in cache and "s" not in orders[1]:
                    continue
                actual = model.generate(**padded(), **prompt, **options, **cache)
                found, wanted = ((x.sort().values if ties else x) for x in (actual.sequences, expected.sequences))
                assert torch.equal(found, wanted), orders
                torch.testing.assert_close(actual.sequences_scores, expected.sequences_scores)

    @pytest.mark.parametrize("beams", [1, 3])
    def test_samples_several_targets_of_a_source(self, beams):
        options = GREEDY | {"do_sample": True, "num_return_sequences": 3, "num_beams": beams}
        for orders in self.pairs:
            model = self.translator(*orders)
            targets = []
            for each in (model, generic(model)):
                torch.manual_seed(1)
                targets.append(each.generate(**padded(), **options))
            assert torch.equal(*targets), orders
            assert len(targets[0].unique(dim=0)) > 3

    @with_todays_parts
    def test_keys_of_a_source_are_computed_once_however_many_beams_read_them(self):
        for orders in self.pairs:
            model = self.translator(*orders)
            for options in (BEAMS, GREEDY, BEAMS | {"cache_implementation": "static"}):
                rows = Counter()
                hooks = [
                    layer.mixer.k_proj.register_forward_hook(
                        lambda _, args, out, depth=depth, rows=rows: rows.update({depth: out[..., 0].numel()})
                    )
                    for depth, layer in enumerate(model.model.decoder.layers)
                    if orders[1][depth] == "c"
                ]
                model.generate(tokens(3, 9), **options)
                assert rows == {depth: 3 * 9 for depth, letter in enumerate(orders[1]) if letter == "c"}
                for hook in hooks:
                    hook.remove()

    def test_a_static_cache_forgets_the_source_before(self):
        static = {"cache_implementation": "static"}
        model = self.translator()
        for batch in (padded(), padded(2, 6), padded(3, 9) | {"input_ids": tokens(3, 9).flip(0)}):
            for options in (GREEDY, BEAMS):
                expected = model.generate(**batch, **options, use_cache=False)
                assert torch.equal(model.generate(**batch, **options, **static), expected)

    @pytest.mark.slow
    def test_assisted_decoding_equals_plain_decoding(self):
        assistant = self.translator("sf", "scf")
        for orders in self.all_pairs:
            model = self.translator(*orders)
            for i in range(3):
                batch = {name: tensor[i : i + 1] for name, tensor in padded().items()}
                expected = self.naive_greedy(model, batch)
                for helper in ({"assistant_model": assistant}, {"prompt_lookup_num_tokens": 3}):
                    assert torch.equal(model.generate(**batch, **GREEDY, **helper)[:, 1:], expected), orders

    def test_returns_the_attention_of_every_beam(self):
        model = self.translator("sf", "sccf", attn_implementation="eager")
        out = model.generate(**padded(), **BEAMS, output_attentions=True, return_dict_in_generate=True)
        assert len(out.encoder_attentions) == 1
        assert len(out.cross_attentions) == STEPS
        assert {weights.shape for step in out.cross_attentions for weights in step} == {(12, 4, 1, 9)}
        for step in out.cross_attentions:
            # nobody looks at padding
            assert all(weights[4:8, ..., :4].eq(0).all() for weights in step)
            assert all(weights[8:, ..., -3:].eq(0).all() for weights in step)
            assert len(step) == 2

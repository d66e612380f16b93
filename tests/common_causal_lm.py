"""The contract of causal language models: generation, caches, packing, exact losses."""

import random

import pytest
import torch
from common import (
    ALL_FEED_FORWARD,
    PAD,
    VOCAB,
    ModelContract,
    assert_accumulates,
    assert_same,
    gradients,
    tokens,
    train_gradients,
    with_todays_parts,
)
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    ContinuousBatchingConfig,
    DynamicCache,
    GenerationConfig,
    PreTrainedModel,
    QuantizedCache,
    Trainer,
    TrainingArguments,
)

from sublayers.modeling.plan import Plan


class CausalLMContract(ModelContract):
    """What holds for a causal language model on top of every model."""

    def language_model(self, sublayer_order: str = "sfsfsff", **overrides) -> PreTrainedModel:
        return self.model(AutoModelForCausalLM, sublayer_order, tie_word_embeddings=False, **overrides)

    def naive_greedy(self, model, prompt: torch.Tensor, steps: int) -> torch.Tensor:
        """Greedy decoding that runs the whole sequence anew for every token, one row at a time."""
        rows = []
        for row in prompt:
            row = row[row != PAD][None]
            for _ in range(steps):
                row = torch.cat([row, model(row, use_cache=False).logits[:, -1:].argmax(-1)], dim=1)
            rows.append(row[0, -steps:])
        return torch.stack(rows)

    def generate(self, model, prompt, steps=12, **kwargs) -> torch.Tensor:
        options = {"max_new_tokens": steps, "min_new_tokens": steps, "do_sample": False, "eos_token_id": None}
        out = model.generate(prompt, attention_mask=(prompt != PAD).long(), **options | kwargs)
        return out[:, prompt.shape[1] :]

    @with_todays_parts
    @pytest.mark.parametrize(
        "cache",
        [
            {},
            {"use_cache": False},
            {"cache_implementation": "static"},
            {"prefill_chunk_size": 3},
            {"prompt_lookup_num_tokens": 3},
        ],
        ids=lambda cache: "-".join(map(str, cache.values())) or "dynamic",
    )
    @pytest.mark.representatives(4)
    def test_cached_generation_equals_a_naive_loop(self, cache):
        prompt = tokens(3, 9)
        if "prefill_chunk_size" not in cache:
            prompt[1, :4] = prompt[2, :7] = PAD
        prompt = prompt[:1] if "prompt_lookup_num_tokens" in cache else prompt
        for order in (*self.attentive, *([] if cache else [ALL_FEED_FORWARD])):
            model = self.language_model(order)
            assert torch.equal(self.generate(model, prompt, **cache), self.naive_greedy(model, prompt, 12)), order

    @with_todays_parts
    def test_padding_changes_no_score_without_position_ids(self):
        mask = torch.ones(3, 9, dtype=torch.long)
        mask[1, :4] = mask[2, -3:] = 0
        for order in (*self.attentive, ALL_FEED_FORWARD):
            model = self.language_model(order)
            padded = model(tokens(3, 9), attention_mask=mask).logits
            for i in range(3):
                alone = model(tokens(3, 9)[i][mask[i].bool()][None]).logits[0]
                torch.testing.assert_close(padded[i][mask[i].bool()], alone, atol=1e-5, rtol=1e-5)

    @with_todays_parts
    def test_beams_with_a_cache_equal_beams_without(self):
        prompt = tokens(2, 6)
        prompt[1, :2] = PAD
        for order in self.attentive:
            model = self.language_model(order)
            options = {"num_beams": 4, "num_return_sequences": 4, "length_penalty": 0.7}
            expected = self.generate(model, prompt, use_cache=False, **options)
            assert torch.equal(self.generate(model, prompt, **options), expected)
            assert torch.equal(self.generate(model, prompt, cache_implementation="static", **options), expected)

    @pytest.mark.slow
    def test_assisted_decoding_equals_plain_decoding(self):
        assistant = self.language_model("sf")
        for order in self.attentive:
            model = self.language_model(order)
            expected = self.naive_greedy(model, tokens(1, 7), 12)
            for cache in ({}, {"cache_implementation": "static"}):
                assert torch.equal(self.generate(model, tokens(1, 7), assistant_model=assistant, **cache), expected)

    @with_todays_parts
    def test_a_quantised_cache_comes_close(self):
        for order in self.attentive:
            model = self.language_model(order)
            full = model(tokens(2, 12)).logits
            if model.config.attention_window is not None:
                with pytest.raises(ValueError, match="only supported for models with only full attention"):
                    QuantizedCache("fp8", model.config)
                continue
            cache = QuantizedCache("fp8", model.config)
            model(tokens(2, 12)[:, :6], cache=cache, use_cache=True)
            rest = model(tokens(2, 12)[:, 6:], cache=cache, use_cache=True).logits
            error = (rest - full[:, 6:]).norm() / full[:, 6:].norm()
            assert 0 < error < 0.1, f"{order}: {error}"

    @with_todays_parts
    @pytest.mark.slow
    @pytest.mark.representatives(1)
    def test_continuous_batching_equals_plain_decoding(self):
        prompts = [tokens(1, length)[0].tolist() for length in (3, 8, 5)]
        options = GenerationConfig(max_new_tokens=6, do_sample=False, eos_token_id=-1, pad_token_id=PAD)
        paged = ContinuousBatchingConfig(num_blocks=8, max_batch_tokens=64)
        for order in (*self.attentive[:4], self.attentive[-1]):
            model = self.language_model(order)
            results = model.generate_batch(
                prompts, generation_config=options, continuous_batching_config=paged, progress_bar=False
            )
            by_prompt = {tuple(r.prompt_ids): r.generated_tokens for r in results.values()}
            for prompt in prompts:
                expected = self.naive_greedy(model, torch.tensor([prompt]), 6)[0].tolist()
                assert by_prompt[tuple(prompt)] == expected

    @with_todays_parts
    @pytest.mark.parametrize("use_cache", [True, False])
    def test_packed_sequences_do_not_see_each_other(self, use_cache):
        lengths = [4, 7, 1, 6]
        pieces = [tokens(1, length) for length in lengths]
        position_ids = torch.cat([torch.arange(length) for length in lengths])[None]
        for order in self.attentive:
            model = self.language_model(order)
            packed = model(torch.cat(pieces, 1), position_ids=position_ids, use_cache=use_cache).logits
            expected = torch.cat([model(piece).logits for piece in pieces], dim=1)
            torch.testing.assert_close(packed, expected, atol=1e-5, rtol=1e-5)

    @with_todays_parts
    def test_keeps_only_the_logits_that_are_asked_for(self):
        for order in (*self.attentive, ALL_FEED_FORWARD):
            model = self.language_model(order)
            full = model(tokens(3, 9)).logits
            chosen = torch.rand(3, 9, generator=torch.Generator().manual_seed(1)) < 0.5
            each = torch.tensor([[1, 2], [8, 0], [5, 5]])
            for keep, expected in [
                (1, full[:, -1:]),
                (4, full[:, -4:]),
                (50, full),
                (torch.tensor([2, -1]), full[:, [2, -1]]),
                (chosen[0], full[:, chosen[0]]),
                (each, torch.take_along_dim(full, each[..., None], 1)),
                (chosen, full[chosen]),
            ]:
                actual = model(tokens(3, 9), logits_to_keep=keep).logits
                torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
                everything = model(tokens(3, 9), logits_to_keep=keep, output_hidden_states=True)
                torch.testing.assert_close(everything.logits, expected, atol=1e-5, rtol=1e-5)
                assert all(state.shape[:2] == (3, 9) for state in everything.hidden_states)

    @pytest.mark.slow
    def test_a_compiled_model_keeps_logits_by_a_mask(self):
        model, keep = self.language_model("sff"), torch.arange(18).view(2, 9) % 4 == 1
        compiled = torch.compile(model, backend="aot_eager")
        torch.testing.assert_close(compiled(tokens(2, 9), logits_to_keep=keep).logits, model(tokens(2, 9)).logits[keep])
        torch.compiler.reset()

    @with_todays_parts
    @pytest.mark.parametrize("padded", [True, False])
    def test_feed_forward_sublayers_run_only_on_tokens_that_count(self, padded):
        real = torch.ones(3, 9, dtype=torch.long)
        if padded:
            real[1, :4] = real[2, -3:] = 0
        kept = torch.rand(3, 9, generator=torch.Generator().manual_seed(1)) < 0.3
        kept &= real.bool()
        for order in (*self.attentive, ALL_FEED_FORWARD):
            model = self.language_model(order)
            rows = []
            for layer in model.model.layers:
                layer.mixer.register_forward_hook(lambda _, args, out, rows=rows: rows.append(out[0][..., 0].numel()))
            order = model.config.order
            full = model(tokens(3, 9), attention_mask=real).logits
            assert rows == [real.sum()] * len(order)
            rows.clear()
            logits = model(tokens(3, 9), attention_mask=real, logits_to_keep=kept).logits
            torch.testing.assert_close(logits, full[kept], atol=1e-5, rtol=1e-5)
            # the states before the first m are those of all tokens
            before = order.tail_start if order.has_fixed_states else max(order.tail_start - 1, 0)
            assert rows == [real.sum()] * before + [kept.sum()] * (len(order) - before)

    @with_todays_parts
    def test_reads_positions_of_a_model_that_looks_both_ways(self):
        for order in self.attentive:
            model = self.model(sublayer_order=order)
            full = model(tokens(2, 9), is_causal=False).last_hidden_state
            assert not torch.allclose(full, model(tokens(2, 9)).last_hidden_state)
            read = model(
                tokens(2, 9), is_causal=False, plan=Plan.of(tokens(2, 9), read=torch.tensor([[3]]))
            ).last_hidden_state
            torch.testing.assert_close(read, full[:, 3:4], atol=1e-5, rtol=1e-5)

    @with_todays_parts
    def test_continues_from_a_cache_at_any_split(self):
        for order in self.attentive:
            model = self.language_model(order)
            full = model(tokens(2, 12)).logits
            for split in (1, 5, 11):
                cache = model(tokens(2, 12)[:, :split], use_cache=True, logits_to_keep=1).cache
                rest = model(tokens(2, 12)[:, split:], cache=cache, use_cache=True, logits_to_keep=2).logits
                torch.testing.assert_close(rest, full[:, max(split, 10) :], atol=1e-5, rtol=1e-5)

    def test_a_cache_may_be_given_by_its_old_name(self):
        model = self.language_model()
        first = model(tokens(2, 12)[:, :5], use_cache=True)
        assert first.past_key_values is first.cache
        with pytest.warns(FutureWarning, match="`past_key_values` is deprecated .* Use `cache` instead"):
            rest = model(tokens(2, 12)[:, 5:], past_key_values=first.cache).logits
        torch.testing.assert_close(rest, model(tokens(2, 12)).logits[:, 5:], atol=1e-5, rtol=1e-5)

    def test_checkpoints_leave_a_cache_alone(self):
        for order in self.attentive:
            model = self.language_model(order).train()
            model(tokens(2, 7), labels=tokens(2, 7)).loss.backward()
            wanted = gradients(model)
            model.zero_grad()
            model.gradient_checkpointing_enable()
            cache = DynamicCache()
            model(tokens(2, 7), labels=tokens(2, 7), cache=cache).loss.backward()
            assert cache.get_seq_length() == 0
            assert_same(gradients(model), wanted, atol=1e-5, rtol=1e-4)

    @pytest.mark.slow
    def test_the_trainer_predicts_scores_and_no_cache(self, tmp_path):
        model = self.language_model(use_cache=True)
        rows = [{"input_ids": ids, "labels": ids} for ids in tokens(4, 8)]
        arguments = TrainingArguments(str(tmp_path), per_device_eval_batch_size=2, report_to="none", use_cpu=True)
        found = Trainer(model, arguments).predict(rows).predictions
        torch.testing.assert_close(torch.tensor(found), model(tokens(4, 8)).logits, atol=1e-5, rtol=1e-5)

    def ragged_rows(self, number: int = 8) -> list[dict]:
        rows = []
        draw = random.Random(0)
        for ids in tokens(number, 10):
            labels = ids.clone()
            labels[: draw.randrange(9)] = -100
            rows.append({"input_ids": ids, "labels": labels})
        return rows

    def test_loss_is_the_mean_over_tokens_or_the_share_of_the_given_number(self):
        model = self.language_model()
        batch = {name: torch.stack([row[name] for row in self.ragged_rows()]) for name in ("input_ids", "labels")}
        log_probs = model(batch["input_ids"]).logits.log_softmax(-1)
        losses = [
            -log_probs[row, i, batch["labels"][row, i + 1]]
            for row in range(8)
            for i in range(9)
            if batch["labels"][row, i + 1] != -100
        ]
        torch.testing.assert_close(model(**batch).loss, sum(losses) / len(losses))
        torch.testing.assert_close(model(**batch, num_items_in_batch=100).loss, sum(losses) / 100)

    @pytest.mark.slow
    def test_gradient_accumulation_is_exact(self, tmp_path):
        assert_accumulates(self.language_model(), self.ragged_rows(), tmp_path)

    def test_the_trainers_label_smoothing_predicts_the_next_token(self, tmp_path):
        model = self.language_model()
        rows = [{"input_ids": ids, "labels": ids} for ids in tokens(4, 8)]
        smoothed = train_gradients(model, rows, tmp_path, per_device_train_batch_size=4, label_smoothing_factor=0.1)
        ids = tokens(4, 8)
        log_probs = model(ids).logits[:, :-1].log_softmax(-1)
        target = torch.nn.functional.one_hot(ids[:, 1:], VOCAB) * 0.9 + 0.1 / VOCAB
        (-(log_probs * target).sum(-1).mean()).backward()
        assert_same(smoothed, gradients(model), atol=1e-5, rtol=1e-4)

    @pytest.mark.parametrize(
        ("num_labels", "labels"),
        [
            (3, torch.tensor([0, 2, 1, 1, 0, 2, 2, 1])),
            (1, torch.linspace(-1, 2, 8)),
            (3, torch.tensor([[1.0, 0, 1], [0, 0, 1]] * 4)),
        ],
        ids=["single-label", "regression", "multi-label"],
    )
    @pytest.mark.slow
    @pytest.mark.representatives(1)
    def test_classifier_reads_the_last_token_and_accumulates_exactly(self, num_labels, labels, tmp_path):
        model = self.model(AutoModelForSequenceClassification, num_labels=num_labels)
        rows = []
        for i, (ids, label) in enumerate(zip(tokens(8, 9), labels, strict=True)):
            mask = torch.ones(9, dtype=torch.long)
            mask[9 - i :] = 0
            rows.append({"input_ids": ids, "attention_mask": mask, "labels": label})
        batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        together = model(**batch)
        alone = [row["input_ids"][: 9 - i][None] for i, row in enumerate(rows)]
        last = torch.cat([model.base_model(ids).last_hidden_state[:, -1] for ids in alone])
        torch.testing.assert_close(together.logits, last @ model.score.weight.T, atol=1e-5, rtol=1e-5)
        unmasked = torch.cat([model(ids).logits for ids in alone])
        torch.testing.assert_close(unmasked, together.logits, atol=1e-5, rtol=1e-5)
        naive = {
            "single_label_classification": lambda x: -x.log_softmax(-1)[torch.arange(8), labels].mean(),
            "multi_label_classification": lambda x: (
                -(labels * x.sigmoid().log() + (1 - labels) * (-x).sigmoid().log()).mean()
            ),
            "regression": lambda x: (x[:, 0] - labels).square().mean(),
        }[model.config.problem_type]
        torch.testing.assert_close(together.loss, naive(together.logits))
        assert_accumulates(model, rows, tmp_path)

    def test_classifier_cannot_guess_where_rows_end(self):
        model = self.model(AutoModelForSequenceClassification, pad_token_id=None)
        with pytest.raises(ValueError, match="cannot tell where each of 2 rows ends"):
            model(tokens(2, 5))

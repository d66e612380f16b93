"""The contract of the language models with memory: segments, memory as a cache, and nothing that limits a text."""

import pytest
import torch
from common import ALL_FEED_FORWARD, VOCAB, WITH_MEMORY, assert_same, every_backend, gradients, tokens
from common_causal_lm import CausalLMContract
from transformers import AutoModelForCausalLM, pipeline

from sublayers import expand
from sublayers.training.data.tokenizers import train_tokenizer

# orders with attention; without, there is nothing to remember
RECURRENT = WITH_MEMORY[:5]


class RecurrentLMContract(CausalLMContract):
    """What holds for a language model with memory on top of every causal language model."""

    attentive = WITH_MEMORY
    saved_orders = [("sfsfsff",), (ALL_FEED_FORWARD,)]

    # positions are distances: there are no tables to run out of, and no looking ahead
    test_reads_positions_of_a_model_that_looks_both_ways = None
    # there are no buffers
    test_buffers_are_filled_before_weights_are = None
    # its keys and values have no distances
    test_continuous_batching_equals_plain_decoding = None
    # of the cache that grows without limit
    test_a_quantised_cache_comes_close = None
    # in training with labels there may be no logits
    test_the_trainers_label_smoothing_predicts_the_next_token = None

    def config(self, *orders, **overrides):
        return super().config(*orders, **{"max_position_embeddings": None, self.length_field: 64} | overrides)

    # the configuration's name for how many tokens are remembered
    length_field: str

    def segments(self, model, ids: torch.Tensor, cuts: list[int], **kwargs) -> torch.Tensor:
        """Logits of a text that is read in segments, with memory."""
        memory, logits = model.empty_memory(len(ids)), []
        for start, end in zip([0, *cuts], [*cuts, ids.shape[1]], strict=True):
            out = model(ids[:, start:end], memory=memory, **kwargs)
            memory = out.memory
            logits.append(out.logits)
        return torch.cat(logits, dim=1)

    def test_a_text_in_segments_scores_as_a_whole(self):
        for order in (*RECURRENT, ALL_FEED_FORWARD):
            model = self.language_model(order)
            whole = model(tokens(2, 20)).logits
            for cuts in ([7, 14], [1, 2, 3], [19]):
                torch.testing.assert_close(self.segments(model, tokens(2, 20), cuts), whole, atol=1e-5, rtol=1e-5)

    def test_rows_do_not_depend_on_each_other_or_on_what_was_generated_between(self):
        model = self.language_model(**{self.length_field: 6})
        together = self.segments(model, tokens(3, 20), [6, 12])
        memory, rows = model.empty_memory(1), []
        for start, end in ((0, 6), (6, 12), (12, 20)):
            out = model(tokens(3, 20)[1:2, start:end], memory=memory)
            memory = out.memory
            rows.append(out.logits)
            self.generate(model, tokens(2, 7), steps=5)
        torch.testing.assert_close(torch.cat(rows, dim=1)[0], together[1], atol=1e-5, rtol=1e-5)

    def test_memory_is_what_attention_read_and_no_longer_than_it_may_be(self):
        for order in RECURRENT:
            model = self.language_model(order, **{self.length_field: 6})
            out = model(tokens(2, 20), memory=model.empty_memory(2), output_hidden_states=True)
            inputs = [s for s, letter in zip(out.hidden_states, expand(order), strict=False) if letter == "s"]
            assert len(out.memory) == model.config.num_hidden_layers
            for remembered, states in zip(out.memory, inputs, strict=True):
                assert torch.equal(remembered, states[:, -6:])
                assert not remembered.requires_grad
            # they keep nothing else alive
            for remembered in (*out.memory, *model(tokens(2, 4), memory=out.memory).memory):
                assert remembered.untyped_storage().nbytes() == remembered.nbytes

    def test_remembers_the_whole_segment_whatever_is_read_of_it(self):
        for order in RECURRENT:
            model = self.language_model(order)
            memory = model(tokens(2, 9), memory=model.empty_memory(2)).memory
            whole = model(tokens(2, 7), memory=memory)
            # more of one row than of the other
            mask = tokens(2, 7) % 3 == 0
            for keep, expected in ((mask, whole.logits[mask]), (2, whole.logits[:, -2:])):
                out = model(tokens(2, 7), memory=memory, logits_to_keep=keep)
                torch.testing.assert_close(out.logits, expected, atol=1e-5, rtol=1e-5)
                assert_same(dict(enumerate(out.memory)), dict(enumerate(whole.memory)), atol=1e-5, rtol=1e-5)

    def test_memory_of_length_zero_is_none(self):
        model = self.language_model(**{self.length_field: 0}) if self.length_field == "memory_length" else None
        if model is None:
            pytest.skip("attention that sees no token before")
        out = model(tokens(2, 9), memory=model.empty_memory(2))
        assert all(remembered.shape == (2, 0, 16) for remembered in out.memory)
        assert torch.equal(out.logits, model(tokens(2, 9)).logits)
        again = model(tokens(2, 9), memory=out.memory)
        assert torch.equal(again.logits, out.logits)
        assert torch.equal(
            self.generate(model, tokens(2, 7), use_cache=False), self.naive_greedy(model, tokens(2, 7), 12)
        )
        with pytest.raises(ValueError, match="a cache of memory_length=0 holds nothing; pass use_cache=False"):
            self.generate(model, tokens(2, 7))

    def test_a_head_without_memory_has_none(self):
        assert self.language_model()(tokens(2, 9)).memory is None

    def test_the_cache_of_generation_never_grows_beyond_the_memory(self):
        model = self.language_model(**{self.length_field: 6})
        out = model.generate(
            tokens(2, 9), max_new_tokens=20, do_sample=False, eos_token_id=None, return_dict_in_generate=True
        )
        for layer in out.cache.layers:
            assert layer.keys.shape[2] <= 6
        # and is what the model makes, too
        for layer in model(tokens(2, 9), use_cache=True).cache.layers:
            assert layer.keys.shape[2] <= 6

    def test_a_pipeline_continues_a_text_longer_than_the_memory(self):
        tokenizer = train_tokenizer(["ada wrote the first program"], "wordpiece", VOCAB)
        model = self.language_model(vocab_size=len(tokenizer), **{self.length_field: 6})
        text = "ada wrote the first program " * 3
        generate = pipeline("text-generation", model=model, tokenizer=tokenizer)
        [found] = generate(text, max_new_tokens=8, do_sample=False, return_tensors=True)
        ids = tokenizer(text, return_tensors="pt").input_ids
        [expected] = model.generate(ids, max_new_tokens=8, do_sample=False).tolist()
        assert ids.shape[1] > 6
        assert found["generated_token_ids"] == expected

    def test_gradients_stay_within_the_segment(self):
        for order in RECURRENT:
            model = self.language_model(order).train()
            memory = model(tokens(2, 9), memory=model.empty_memory(2)).memory
            assert not any(remembered.requires_grad for remembered in memory)
            model(tokens(2, 9), memory=memory, labels=tokens(2, 9)).loss.backward()
            expected = gradients(model)
            model.zero_grad()
            model.gradient_checkpointing_enable()
            again = model(tokens(2, 9), memory=memory, labels=tokens(2, 9))
            again.loss.backward()
            assert_same(gradients(model), expected, atol=1e-6, rtol=1e-5)

    @every_backend
    def test_attention_backends_agree_on_memory(self, backend):
        model = self.language_model(**{self.length_field: 6})
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            expected = self.segments(model, tokens(2, 20), [7, 14])
            model.set_attn_implementation(backend)
            actual = self.segments(model, tokens(2, 20), [7, 14])
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)

    def test_says_which_backends_know_no_distances(self):
        with pytest.raises(ValueError, match="does not support Flash Attention"):
            self.language_model().set_attn_implementation("flash_attention_2")

    def test_labels_of_the_next_segment_may_be_given(self):
        model = self.language_model()
        ids = tokens(2, 10)
        scores = model(ids[:, :-1]).logits.log_softmax(-1).gather(-1, ids[:, 1:, None])
        loss = model(ids[:, :-1], shift_labels=ids[:, 1:]).loss
        torch.testing.assert_close(loss, -scores.mean())
        torch.testing.assert_close(model(ids[:, :-1], shift_labels=ids[:, 1:], num_items_in_batch=36).loss, loss / 2)

    def test_says_in_one_sentence_what_is_wrong_with_an_input(self):
        model = self.language_model("sfs")
        with pytest.raises(ValueError, match=f"input_ids must lie between 0 and {VOCAB - 1}, got 5 to {VOCAB}"):
            model(torch.tensor([[5, VOCAB]]))
        for head in self.classes:
            with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
                self.model(head)()
        memory = model.empty_memory(2)
        with pytest.raises(ValueError, match="a memory of 1 attention sublayers does not fit 'sfs', which has 2"):
            model(tokens(2, 3), memory=memory[:1])
        with pytest.raises(ValueError, match=r"shape \(2, 0, 16\) does not fit a batch of 3 rows and width 16"):
            model(tokens(3, 3), memory=memory)
        with pytest.raises(ValueError, match="pass it alone"):
            model(tokens(2, 3), memory=memory, attention_mask=torch.ones(2, 3))

    @pytest.mark.slow
    def test_compiles_in_one_graph(self):
        model = self.model(AutoModelForCausalLM).train()
        batch = {"input_ids": tokens(2, 9), "labels": tokens(2, 9).where(tokens(2, 9) > 9, -100)}
        memory = model(**batch, memory=model.empty_memory(2)).memory
        expected = model(**batch, memory=memory)
        expected.loss.backward()
        wanted = gradients(model)
        model.zero_grad()
        actual = torch.compile(model, fullgraph=True, backend="aot_eager")(**batch, memory=memory)
        torch.testing.assert_close(actual.loss, expected.loss)
        assert_same(dict(enumerate(actual.memory)), dict(enumerate(expected.memory)))
        actual.loss.backward()
        assert_same(gradients(model), wanted, atol=1e-5, rtol=1e-4)
        torch.compiler.reset()

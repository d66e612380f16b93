"""The contract of encoder-decoders: two stacks in any order, their embeddings, outputs and errors."""

import random

import pytest
import torch
from common import (
    VOCAB,
    FamilyContract,
    assert_same,
    every_backend,
    gradients,
    tokens,
    with_todays_parts,
)
from common_naive import NaiveSeq2Seq
from safetensors import safe_open
from transformers import AutoModel, AutoModelForSeq2SeqLM, PreTrainedModel

from sublayers import random_unbalanced


def random_decoder(seed: int) -> str:
    letters = list("scf") + random.Random(seed).choices("scf", k=3)
    random.Random(seed).shuffle(letters)
    return "".join(letters)


# more cross- than self-attention, more self- than cross-attention, and an encoder without attention
PAIRS = [
    ("sf", "scf"),
    ("fsf", "fscf"),
    ("ssff", "scscff"),
    ("ff", "ccsf"),
    ("sf", "sscf"),
    ("s", "csf"),
    ("sfmf", "scfmcf"),
    *((random_unbalanced(5, seed), random_decoder(seed)) for seed in range(2)),
]
# decoders without self-attention have nothing to cache by which generation could count tokens
WITHOUT_SELF_ATTENTION = [("sf", "cf"), ("sf", "fcc"), ("ff", "f")]
TARGETS = {"decoder_input_ids": tokens(3, 7)}


def padded(rows: int = 3, length: int = 9) -> dict[str, torch.Tensor]:
    """Sources of which the second is padded on its left and the third on its right."""
    mask = torch.ones(rows, length, dtype=torch.long)
    mask[1:2, :4] = mask[2:3, -3:] = 0
    return {"input_ids": tokens(rows, length), "attention_mask": mask}


def sources(batch: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """The same sources without padding, one by one: (1, length) each."""
    return [ids[mask.bool()][None] for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)]


class Seq2SeqContract(FamilyContract):
    """What holds for an encoder-decoder on top of every model."""

    orders = ("sff", "fscscf")
    saved_orders = [("sff", "fscscf"), ("sfmf", "smcf"), ("ff", "f"), ("sf", "cf"), ("sf", "sf")]
    exported = ("s", "scf")
    # of the two stacks; those of a class with many orders are fewer
    pairs, without_self_attention = PAIRS, WITHOUT_SELF_ATTENTION
    naive = NaiveSeq2Seq
    # options of the naive networks that a family lacks
    lacks: tuple[str, ...] = ()

    @property
    def all_pairs(self) -> list[tuple[str, str]]:
        return [*self.pairs, *self.without_self_attention, ("sf", "sf")]

    def inputs(self, head):
        return {"input_ids": tokens(2, 9), "decoder_input_ids": tokens(2, 7)}

    def translator(self, *orders: str, **overrides) -> PreTrainedModel:
        return self.model(AutoModelForSeq2SeqLM, *orders, **{"tie_word_embeddings": False} | overrides)

    @pytest.mark.parametrize("norm_position", ["pre", "post", "both"])
    @pytest.mark.parametrize(
        "options",
        [
            {"position_embedding_type": "learned", "final_norm": True, "feed_forward_scale": 0.5},
            {"embedding_norm": True, "final_norm": False, "scale_embedding": False, "feed_forward_scale": 1.0},
            {"pre_attention_act": "tanh", "output_bias": True, "position_offset": 0, "tie_word_embeddings": True},
            {"share_encoder_decoder_embeddings": False, "encoder_vocab_size": 80, "norm_affine": False},
        ],
        ids=lambda options: "-".join(options),
    )
    def test_equals_a_naive_network_in_every_pair_of_orders(self, norm_position, options):
        source, target = tokens(1, 4), tokens(1, 3)
        options = {name: value for name, value in options.items() if name not in self.lacks}
        for orders in self.all_pairs:
            # rounding in single precision differs between processors by more than 1e-5 of the largest scores
            model = self.translator(*orders, norm_position=norm_position, **options).double()
            expected = self.naive(model)(source[0], target[0])
            actual = model(source, decoder_input_ids=target).logits[0]
            torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5, msg=lambda m, o=orders: f"{o}: {m}")

    def test_gradients_equal_those_of_a_naive_network(self):
        source, target, labels = tokens(1, 4), tokens(1, 3), torch.tensor([7, 8, 9])
        for orders in (("fsf", "fscf"), ("sf", "ccsf")):
            model = self.translator(*orders)
            model(source, decoder_input_ids=target, labels=labels[None]).loss.backward()
            actual = gradients(model)
            model.zero_grad()
            naive = self.naive(model)
            naive.weights = dict(model.named_parameters(remove_duplicate=False))
            torch.nn.functional.cross_entropy(naive(source[0], target[0]), labels).backward()
            assert_same(actual, gradients(model), atol=1e-5, rtol=1e-4)

    @with_todays_parts
    def test_padding_changes_no_score(self):
        mask = torch.ones(3, 7, dtype=torch.long)
        mask[0, :2] = mask[2, -3:] = 0
        for orders in self.all_pairs:
            model = self.translator(*orders)
            logits = model(**padded(), **TARGETS, decoder_attention_mask=mask).logits
            for i, source in enumerate(sources(padded())):
                real = mask[i].bool()
                alone = model(source, decoder_input_ids=TARGETS["decoder_input_ids"][i][real][None]).logits[0]
                torch.testing.assert_close(logits[i][real], alone, atol=1e-5, rtol=1e-5)

    def test_reads_the_outputs_of_the_encoder_in_the_place_of_a_source(self):
        model, mask = self.translator(), padded()["attention_mask"]
        expected = model(**padded(), **TARGETS)
        encoded = model.get_encoder()(**padded())
        for outputs in (encoded, (encoded.last_hidden_state,)):
            actual = model(encoder_outputs=outputs, attention_mask=mask, **TARGETS)
            torch.testing.assert_close(actual.logits, expected.logits)
            assert torch.equal(actual.encoder_last_hidden_state, encoded.last_hidden_state)

    @every_backend
    def test_attention_backends_agree(self, backend):
        target_mask = torch.ones(3, 7, dtype=torch.long)
        target_mask[0, :2] = 0
        for orders in self.pairs:
            model = self.translator(*orders)
            batch = padded() | TARGETS | {"decoder_attention_mask": target_mask}
            # two candidates for each source
            encoded = model.get_encoder()(**padded())
            beams = {"encoder_outputs": encoded, "attention_mask": batch["attention_mask"]}
            beams["decoder_input_ids"] = tokens(6, 4)
            with torch.no_grad():
                expected, of_beams = model(**batch).logits, model(**beams).logits
                model.set_attn_implementation(backend)
                with torch.compiler.set_stance("force_eager"):
                    actual, beams_again = model(**batch).logits, model(**beams).logits
            real = target_mask.bool()
            torch.testing.assert_close(actual[real], expected[real], atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(beams_again, of_beams, atol=1e-5, rtol=1e-5)

    def test_returns_the_hidden_states_and_weights_of_a_naive_network(self):
        source, target = tokens(1, 4), tokens(1, 3)
        for orders in self.all_pairs:
            model = self.translator(*orders, attn_implementation="eager")
            naive = self.naive(model)
            naive(source[0], target[0])
            out = model(source, decoder_input_ids=target, output_hidden_states=True, output_attentions=True)
            for actual, expected in [
                (out.encoder_hidden_states, naive.hidden_states["model.encoder"]),
                (out.decoder_hidden_states, naive.hidden_states["model.decoder"]),
                (out.encoder_attentions, naive.attentions["model.encoder.s"]),
                (out.decoder_attentions, naive.attentions["model.decoder.s"]),
                (out.cross_attentions, naive.attentions["model.decoder.c"]),
            ]:
                assert len(actual) == len(expected), orders
                for tensor, from_naive in zip(actual, expected, strict=True):
                    torch.testing.assert_close(tensor[0], from_naive, atol=1e-5, rtol=1e-5)
            assert torch.equal(out.encoder_hidden_states[-1], out.encoder_last_hidden_state)
            config = model.config
            assert len(out.encoder_hidden_states) == config.num_encoder_sublayers + 1
            assert len(out.decoder_hidden_states) == config.num_decoder_sublayers + 1
            assert config.num_sublayers == config.num_encoder_sublayers + config.num_decoder_sublayers

    def test_hidden_states_of_a_padded_batch_have_a_place_for_its_padding(self):
        mask = torch.ones(3, 7, dtype=torch.long)
        mask[0, :2] = 0
        for orders in self.all_pairs:
            model = self.translator(*orders)
            batch = padded() | TARGETS | {"decoder_attention_mask": mask}
            out = model(**batch, output_hidden_states=True)
            assert {state.shape for state in out.encoder_hidden_states} == {(3, 9, 16)}
            assert {state.shape for state in out.decoder_hidden_states} == {(3, 7, 16)}
            expected = model(**batch).logits[mask.bool()]
            torch.testing.assert_close(out.logits[mask.bool()], expected, atol=1e-5, rtol=1e-5)

    def test_target_rows_that_share_a_source_have_attention_weights_of_their_own(self):
        for orders in self.pairs:
            model = self.translator(*orders, attn_implementation="eager")
            encoded, mask = model.get_encoder()(**padded()).last_hidden_state, padded()["attention_mask"]
            batch = {"decoder_input_ids": tokens(6, 4), "output_attentions": True, "output_hidden_states": True}
            shared = model(encoder_outputs=(encoded,), attention_mask=mask, **batch)
            encoded, mask = encoded.repeat_interleave(2, 0), mask.repeat_interleave(2, 0)
            repeated = model(encoder_outputs=(encoded,), attention_mask=mask, **batch)
            torch.testing.assert_close(shared.logits, repeated.logits, atol=1e-5, rtol=1e-5)
            assert [w.shape for w in shared.cross_attentions] == [(6, 4, 4, 9)] * orders[1].count("c")
            for name in ("cross_attentions", "decoder_attentions", "decoder_hidden_states"):
                for actual, expected in zip(shared[name], repeated[name], strict=True):
                    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)

    @pytest.mark.parametrize("share", [True, False])
    @pytest.mark.parametrize("tie", [True, False])
    def test_shares_and_ties_only_what_it_is_told_and_resizes_both_sides(self, share, tie, tmp_path):
        for head, model_class in self.classes.items():
            model = self.model(head, share_encoder_decoder_embeddings=share, tie_word_embeddings=tie)
            folder = tmp_path / model_class.__name__
            model.save_pretrained(folder)
            prefix = "" if head is AutoModel else "model."
            saved = {f"{prefix}encoder.embed_tokens.weight"}
            saved |= set() if share else {f"{prefix}decoder.embed_tokens.weight"}
            saved |= set() if tie or head is AutoModel else {"lm_head.weight"}
            with safe_open(folder / "model.safetensors", "pt") as file:
                assert {n for n in file.keys() if "embed_tokens" in n or "lm_head" in n} == saved  # noqa: SIM118
            loaded = head.from_pretrained(folder)
            before = model(**self.inputs(head))[0]
            assert torch.equal(loaded(**self.inputs(head))[0], before)
            for size in (VOCAB, VOCAB + 4, 72):
                if size > VOCAB:
                    loaded.resize_token_embeddings(VOCAB + 4, pad_to_multiple_of=8 if size == 72 else None)
                source, target = (stack.embed_tokens.weight for _, stack in loaded.base_model.named_children())
                assert source.shape == target.shape == (size, 16)
                assert loaded.config.vocab_size == size
                assert (source is target) == share
                assert head is AutoModel or (loaded.lm_head.weight is target) == tie
                after = loaded(**self.inputs(head))[0]
                assert after.shape[-1] == (16 if head is AutoModel else size)
                torch.testing.assert_close(after[..., : before.shape[-1]], before)
                new = torch.tensor([[size - 1]])
                assert loaded(new, decoder_input_ids=new)[0].isfinite().all()

    def test_source_and_target_may_have_vocabularies_of_their_own(self, tmp_path):
        options = {"encoder_vocab_size": 90, "share_encoder_decoder_embeddings": False}
        for head, model_class in self.classes.items():
            model = self.model(head, **options)
            folder = tmp_path / model_class.__name__
            model.save_pretrained(folder)
            loaded = head.from_pretrained(folder)
            assert loaded.get_input_embeddings().weight.shape == (90, 16)
            batch = {"input_ids": torch.tensor([[89, 61]]), "decoder_input_ids": tokens(1, 3)}
            assert torch.equal(loaded(**batch)[0], model(**batch)[0])
            with pytest.raises(ValueError, match=f"decoder_input_ids must lie between 0 and {VOCAB - 1}"):
                loaded(tokens(1, 2), decoder_input_ids=torch.tensor([[89]]))
            with pytest.raises(ValueError, match="vocabularies of their own"):
                loaded.resize_token_embeddings(99)
        # a shared vocabulary may be named twice
        assert self.model(encoder_vocab_size=VOCAB).encoder.embed_tokens.num_embeddings == VOCAB

    def test_gradient_checkpointing_changes_no_gradient(self):
        for orders in [self.pairs[1], self.pairs[3]]:
            model = self.translator(*orders).train()
            batch = padded() | {"labels": tokens(3, 7)}
            runs = []
            for stack in (model.model.encoder, model.model.decoder):
                stack.layers[0].mixer.register_forward_pre_hook(lambda *_, runs=runs: runs.append(1))
            model(**batch).loss.backward()
            once, expected = len(runs), gradients(model)
            assert expected["model.encoder.layers.0.norm.weight"].any()
            for reentrant in (False, True):
                model.zero_grad()
                model.gradient_checkpointing_enable({"use_reentrant": reentrant})
                runs.clear()
                model(**batch).loss.backward()
                assert len(runs) == 2 * once, "the backward pass did not run the sublayers again"
                assert_same(gradients(model), expected)

    @pytest.mark.slow
    def test_compiles_in_one_graph(self):
        model = self.translator(*self.exported, label_smoothing=0.1)
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(**padded(), **TARGETS).logits, model(**padded(), **TARGETS).logits)
        model.train()
        labels = tokens(3, 7)
        labels[0, :2] = labels[1, 4:] = labels[2, 3] = -100
        model(**padded(), labels=labels).loss.backward()
        expected = gradients(model)
        model.zero_grad()
        compiled(**padded(), labels=labels).loss.backward()
        assert_same(gradients(model), expected, atol=1e-5, rtol=1e-4)
        torch.compiler.reset()

    @pytest.mark.slow
    def test_exports_with_any_batch_and_length(self):
        model = self.translator(*self.exported, use_cache=False)
        rows, length = torch.export.Dim("rows"), torch.export.Dim("length", max=64)
        shapes = {name: {0: rows, 1: length} for name in ("input_ids", "attention_mask")}
        shapes["decoder_input_ids"] = {0: rows, 1: torch.export.Dim("target_length", max=64)}
        program = torch.export.export(model, (), padded() | TARGETS, dynamic_shapes=shapes, strict=False)
        batch = padded(2, 20) | {"decoder_input_ids": tokens(2, 11)}
        torch.testing.assert_close(program.module()(**batch).logits, model(**batch).logits)

    @pytest.mark.parametrize(
        ("overrides", "message"),
        [
            ({"encoder_sublayer_order": "scf"}, "no sublayers c .* in its encoder_sublayer_order, here 'scf'"),
            ({"decoder_sublayer_order": "sqf"}, "'q' is not a sublayer"),
            ({"num_hidden_layers": 9}, r"num_hidden_layers=9 contradicts the order 'f\(sc\)2f'"),
            ({"decoder_sublayer_orders": "scf"}, "did you mean 'decoder_sublayer_order'"),
            ({"tomorrow": 16}, "no field 'tomorrow'; nobody would read it"),
            ({"sublayer_order": "sf"}, "give encoder_sublayer_order and decoder_sublayer_order"),
            ({"encoder_vocab_size": 90}, "encoder_vocab_size=90 differs from vocab_size=61"),
        ],
    )
    def test_refuses_bad_configs(self, overrides, message):
        with pytest.raises(ValueError, match=message):
            self.config(**overrides)

    def test_starts_targets_as_it_is_told(self):
        assert self.config().decoder_start_token_id == 2
        assert self.config(eos_token_id=[5, 2]).decoder_start_token_id == 5
        assert self.config(decoder_start_token_id=0).decoder_start_token_id == 0
        model = self.translator(decoder_start_token_id=0)
        ids = model.prepare_decoder_input_ids_from_labels(torch.tensor([[-100, 5, -100, 6], [7, 8, -100, -100]]))
        assert ids.tolist() == [[0, 1, 5, 1], [0, 7, 8, 1]]
        model = self.translator(eos_token_id=None)
        with pytest.raises(ValueError, match="decoder_start_token_id=None"):
            model.prepare_decoder_input_ids_from_labels(tokens(1, 3))

    def test_says_in_one_sentence_what_is_wrong_with_an_input(self):
        two, outside, long = tokens(2, 3), torch.tensor([[5, VOCAB]]), tokens(1, 65)
        for head in self.classes:
            model = self.model(head)
            encoded = model.base_model.encoder(two)
            embeds = model.base_model.encoder.embed_tokens(two)
            places = {"decoder_position_ids": torch.tensor([[62, 63, 64]])}
            for message, source, target, others in [
                (f"^input_ids must lie between 0 and {VOCAB - 1}, got 5 to {VOCAB}", outside, two[:1], {}),
                (f"^decoder_input_ids must lie between 0 and {VOCAB - 1}, got 5 to {VOCAB}", two[:1], outside, {}),
                ("65 tokens does not fit into max_position_embeddings=64", long, two[:1], {}),
                ("65 tokens does not fit into max_position_embeddings=64; shorten", two[:1], long, {}),
                ("exactly one of", None, two, {}),
                ("exactly one of", two, two, {"inputs_embeds": embeds}),
                ("exactly one of", two, two, {"decoder_inputs_embeds": embeds}),
                ("3 target rows cannot share 2 source rows", None, tokens(3, 3), {"encoder_outputs": encoded}),
                ("decoder_position_ids must lie between 0 and 63", two, two, places),
                # and not that the source is missing
                ("decoder_input_ids", two, None, {}),
            ]:
                with pytest.raises(ValueError, match=message):
                    model(source, decoder_input_ids=target, **others)

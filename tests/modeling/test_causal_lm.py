"""What language models do beside what every family does."""

import pytest
import torch
from common import PAD, tokens
from common_generation import naive_greedy
from common_naive import NaiveNetwork
from families import LMS, ROWS, SHORT, every_row, padded, texts
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    ContinuousBatchingConfig,
    GenerationConfig,
    QuantizedCache,
    Trainer,
    TrainingArguments,
)

from sublayers import SandwichLMConfig, SandwichLMModel, expand
from sublayers.modeling.plan import Plan

every_lm = every_row(*LMS)


def close(found, expected):
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@every_row("sandwich_lm")
@torch.no_grad()
def test_a_quantised_cache_comes_close(row):
    for orders in row.orders:
        model = row.main(*orders)
        if hasattr(model.config, "layer_types"):
            with pytest.raises(ValueError, match="only supported for models with only full attention"):
                QuantizedCache("fp8", model.config)
            continue
        full, cache = model(tokens(2, 12)).logits[:, 6:], QuantizedCache("fp8", model.config)
        model(tokens(2, 12)[:, :6], cache=cache, use_cache=True)
        rest = model(tokens(2, 12)[:, 6:], cache=cache, use_cache=True).logits
        assert 0 < (rest - full).norm() / full.norm() < 0.1, orders


@every_row("sandwich_lm")
@pytest.mark.slow
@pytest.mark.representatives(1)
def test_continuous_batching_equals_plain_decoding(row, caplog):
    prompts = [tokens(1, length)[0].tolist() for length in (3, 8, 5)]
    options = GenerationConfig(max_new_tokens=6, do_sample=False, eos_token_id=-1, pad_token_id=PAD)
    paged = ContinuousBatchingConfig(num_blocks=8, max_batch_tokens=64)
    for orders in (*row.orders[:4], row.orders[-1]):
        model = row.main(*orders)
        if {*"gr"} & {*model.config.order}:
            with pytest.raises(ValueError, match=r"continuous batching keeps no states, but sublayers [gr] do"):
                model.generate_batch(prompts, generation_config=options, continuous_batching_config=paged)
            continue
        results = model.generate_batch(
            prompts, generation_config=options, continuous_batching_config=paged, progress_bar=False
        )
        by_prompt = {tuple(r.prompt_ids): r.generated_tokens for r in results.values()}
        if model.config.relative_key_distance:
            # transformers logs what its thread raises
            assert "continuous batching does not tell distances between tokens; call generate" in caplog.text
            continue
        for prompt in prompts:
            text = {"input_ids": torch.tensor([prompt]), "attention_mask": torch.ones(1, len(prompt))}
            assert by_prompt[tuple(prompt)] == naive_greedy(model, text, [{}])[0].tolist()


# before a text of the character model stand zeros, which count: two texts in a row cannot be told apart
@every_row("sandwich_lm", "par_transformer_xl")
@torch.no_grad()
def test_packed_sequences_do_not_see_each_other(row):
    lengths = [4, 7, 1, 6]
    pieces = [tokens(1, length) for length in lengths]
    position_ids = torch.cat([torch.arange(length) for length in lengths])[None]
    for orders in row.orders:
        model = row.main(*orders).double()
        for use_cache in (True, False):
            packed = model(torch.cat(pieces, 1), position_ids=position_ids, use_cache=use_cache).logits
            close(packed, torch.cat([model(piece).logits for piece in pieces], dim=1))


@every_lm
@torch.no_grad()
def test_keeps_only_the_logits_that_are_asked_for(row):
    chosen = torch.rand(3, 9, generator=torch.Generator().manual_seed(1)) < 0.5
    each = torch.tensor([[1, 2], [8, 0], [5, 5]])
    for orders in row.all_orders:
        model = row.main(*orders)
        full = model(tokens(3, 9)).logits
        for keep, expected in [
            (1, full[:, -1:]),
            (4, full[:, -4:]),
            (50, full),
            (torch.tensor([2, -1]), full[:, [2, -1]]),
            (chosen[0], full[:, chosen[0]]),
            (each, torch.take_along_dim(full, each[..., None], 1)),
            (chosen, full[chosen]),
        ]:
            close(model(tokens(3, 9), logits_to_keep=keep).logits, expected)
            everything = model(tokens(3, 9), logits_to_keep=keep, output_hidden_states=True)
            close(everything.logits, expected)
            assert all(state.shape[:2] == (3, 9) for state in everything.hidden_states)


@pytest.mark.full
def test_a_compiled_model_keeps_logits_by_a_mask():
    model, keep = ROWS["sandwich_lm"].main("sff"), torch.arange(18).view(2, 9) % 4 == 1
    compiled = torch.compile(model, backend="aot_eager")
    torch.testing.assert_close(compiled(tokens(2, 9), logits_to_keep=keep).logits, model(tokens(2, 9)).logits[keep])
    torch.compiler.reset()


@every_lm
@torch.no_grad()
def test_feed_forward_sublayers_run_only_on_tokens_that_count(row):
    for orders in row.all_orders:
        model, rows = row.main(*orders), []
        for layer in model.model.layers:
            layer.mixer.register_forward_hook(lambda _, args, out, rows=rows: rows.append(out[0][..., 0].numel()))
        order, batch = model.config.order, padded(model)
        for mask in (batch["attention_mask"], torch.ones(3, 9, dtype=torch.long)):
            kept = (torch.rand(3, 9, generator=torch.Generator().manual_seed(1)) < 0.3) & mask.bool()
            rows.clear()
            full = model(tokens(3, 9), attention_mask=mask).logits
            assert rows == [mask.sum()] * len(order)
            rows.clear()
            close(model(tokens(3, 9), attention_mask=mask, logits_to_keep=kept).logits, full[kept])
            # the states before the first m are those of all tokens
            before = order.tail_start if order.has_fixed_states else max(order.tail_start - 1, 0)
            assert rows == [mask.sum()] * before + [kept.sum()] * (len(order) - before)


@every_row("sandwich_lm")
@torch.no_grad()
def test_reads_positions_of_a_model_that_looks_both_ways(row):
    for orders in row.orders:
        model = row.build(AutoModel, *orders)
        if model.config.recurrence:
            with pytest.raises(ValueError, match="sublayers r look back only; leave is_causal=False out"):
                model(tokens(2, 9), is_causal=False)
            continue
        full = model(tokens(2, 9), is_causal=False).last_hidden_state
        # kernels stay as they are
        assert torch.allclose(full, model(tokens(2, 9)).last_hidden_state) == ({*orders[0]} <= {*"gfw"})
        plan = Plan.of(tokens(2, 9), read=torch.tensor([[3]]))
        close(model(tokens(2, 9), is_causal=False, plan=plan).last_hidden_state, full[:, 3:4])


@every_lm
@pytest.mark.slow
def test_the_trainer_predicts_scores_and_no_cache(row, tmp_path):
    model = row.main(use_cache=True)
    rows = [{"input_ids": ids, "labels": ids} for ids in tokens(4, 8)]
    arguments = TrainingArguments(str(tmp_path), per_device_eval_batch_size=2, report_to="none", use_cpu=True)
    close(torch.tensor(Trainer(model, arguments).predict(rows).predictions), model(tokens(4, 8)).logits)


@every_row("sandwich_lm", "par_transformer_xl")
def test_a_classifier_reads_the_last_token_and_cannot_guess_where_rows_end(row):
    model = row.build(AutoModelForSequenceClassification, num_labels=3)
    batch = padded(model)
    last = torch.cat([model.base_model(**text).last_hidden_state[:, -1] for text in texts(batch)])
    close(model(**batch).logits, last @ model.score.weight.T)
    model.config.pad_token_id = None
    with pytest.raises(ValueError, match="cannot tell where each of 2 rows ends"):
        model(tokens(2, 5))


@pytest.mark.parametrize("norm_position", ["pre", "post", "both"])
@pytest.mark.parametrize("final_norm", [True, False])
@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
@pytest.mark.parametrize("scale", [True, False])
@torch.no_grad()
def test_equals_a_naive_network_in_every_order(norm_position, final_norm, positions, scale):
    options = {"norm_position": norm_position, "final_norm": final_norm, "position_offset": 3}
    options |= {"position_embedding_type": positions, "scale_embedding": scale}
    for orders in [*ROWS["sandwich_lm"].all_orders, *SHORT]:
        model = ROWS["sandwich_lm"].main(*orders, **options)
        found, expected = model(tokens(1, 9)).logits[0], naive_logits(model, tokens(1, 9)[0])
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def naive_logits(model, ids):
    naive = NaiveNetwork(model)
    states = [naive.embed("model", i, token) for i, token in enumerate(ids)]
    states = naive.run("model", states, model.config.sublayer_order, is_causal=True)
    return torch.stack(states) @ naive.weights["lm_head.weight"].T


def test_starts_with_a_residual_stream_that_no_depth_blows_up():
    torch.manual_seed(0)
    sizes = {"vocab_size": 500, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    for order in ("(sf)2", "(sf)32"):
        model = SandwichLMModel(SandwichLMConfig(sublayer_order=order, **sizes)).eval()
        # scaled by sqrt(hidden), embeddings are as large as the sinusoids
        assert model.embed_tokens.weight.std().item() * 8 == pytest.approx(1, abs=0.05)
        outputs = model.layers[0].mixer.o_proj.weight.std().item() * len(expand(order)) ** 0.5
        assert outputs == pytest.approx(model.layers[0].mixer.q_proj.weight.std().item(), rel=0.1)

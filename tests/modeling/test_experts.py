"""Experts against loops over tokens and experts, and the load-balancing loss of every head."""

import pytest
import torch
from common import assert_same, backward, randomize
from common_naive import naive_experts
from families import EXPERTS, FAMILIES, ROWS, every_row, labelled, padded, small, texts
from torch import nn
from torch.nn.functional import silu
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM

from sublayers import PARBertConfig, SandwichLMConfig, SandwichLMModel, SandwichSeq2SeqConfig
from sublayers.modeling.mixers.experts import Experts
from sublayers.modeling.plan import Plan
from sublayers.training.distill.subsets import take_subset

IMPLEMENTATIONS = ["eager", "batched_mm", "grouped_mm"]
SHARED = {"shared_expert_intermediate_size": 8}
PLAIN = {name: EXPERTS[name] for name in ("num_experts", "num_experts_per_tok", "moe_intermediate_size")}


def with_experts(row):
    """The heads of rows that have experts, but for a loss that is weighed by orders."""
    return [head for head in row.heads if "num_experts" in row.options and row.choices != (2, 3)]


def naive(mixer: Experts, states: torch.Tensor, config) -> torch.Tensor:
    """The same for tokens (tokens, hidden), spelled out."""
    return torch.stack(naive_experts(dict(mixer.named_parameters()), "", states, config, silu))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("normalises", [True, False])
@pytest.mark.parametrize("shared", [{}, SHARED, SHARED | {"shared_expert_gate": True}])
def test_equals_a_loop_over_tokens_and_experts(shared, normalises, implementation):
    # rows of other widths than multiples of 16 bytes, and double precision have no grouped product
    for width, dtype, tolerance in ((16, torch.float32, 1e-5), (15, torch.float32, 1e-5), (16, torch.float64, 1e-6)):
        options = PLAIN | {"hidden_size": width, "norm_topk_prob": normalises, "num_attention_heads": 1} | shared
        config = small(SandwichLMConfig, sublayer_order="e", hidden_act="silu", **options)
        body = randomize(SandwichLMModel(config)).to(dtype)
        body.set_experts_implementation(implementation)
        assert config._experts_implementation == implementation
        mixer, states = body.layers[0].mixer, torch.randn(2, 7, width, dtype=dtype)
        found, wanted = mixer(states)[0], naive(mixer, states.flatten(0, 1), config).view_as(states)
        torch.testing.assert_close(found, wanted, atol=tolerance, rtol=tolerance)
        aim = torch.randn_like(found)
        # the share of one that every token has is chosen by nobody
        assert_same(
            *(backward(mixer, (each * aim).sum()) for each in (found, wanted)), atol=10 * tolerance, rtol=10 * tolerance
        )


def test_noise_multiplies_what_routers_and_experts_read_in_training_alone():
    config = small(SandwichLMConfig, sublayer_order="e", hidden_act="silu", router_jitter_noise=0.2, **PLAIN)
    mixer, states, seen = randomize(SandwichLMModel(config)).layers[0].mixer, torch.randn(1, 9, 32), []
    mixer.router.register_forward_pre_hook(lambda router, given: seen.append(given[0]))
    torch.testing.assert_close(mixer(states)[0][0], naive(mixer, states[0], config), atol=1e-5, rtol=1e-5)
    found = mixer.train()(states)[0][0]
    still, noisy = seen
    assert torch.equal(still, states[0])
    changed = noisy / states[0] - 1
    assert -0.201 < changed.min() < -0.1
    assert 0.1 < changed.max() < 0.201
    torch.testing.assert_close(found, naive(mixer, noisy, config), atol=1e-5, rtol=1e-5)


def naive_balance(logits: list[torch.Tensor], chosen: int) -> torch.Tensor:
    """The number of experts times the product of each one's share of choices and its mean probability, summed."""
    shares = torch.cat(logits).softmax(-1)
    best = shares >= shares.topk(chosen).values[:, -1:]
    return shares.shape[1] * sum(best[:, i].float().mean() * shares[:, i].mean() for i in range(shares.shape[1]))


@every_row(heads=with_experts, siblings=True)
def test_heads_add_the_load_balancing_loss_of_tokens_to_theirs(row, head):
    for orders in row.some_orders:
        model = row.build(head, *orders, router_aux_loss_coef=0.5)
        batch, asked = labelled(model, head) if head is not AutoModel else padded(model), {"output_router_logits": True}
        sides = ("encoder_", "decoder_") if model.config.is_encoder_decoder else ("",)
        for training in (False, True):
            model.train(training)
            plain, seen = model(**batch), []
            hooks = [
                module.router.register_forward_hook(lambda _, given, out, m=module, s=seen: s.append((m, out[0])))
                for module in model.modules()
                if isinstance(module, Experts)
            ]
            out = model(**batch, **asked)
            for hook in hooks:
                hook.remove()
            assert "aux_loss" not in plain
            # what was routed, without padding where the rectangle has it
            balance = 0
            for side in sides:
                mask = batch["decoder_attention_mask" if side == "decoder_" else "attention_mask"].flatten().bool()
                own = [scores for m, scores in seen if side in ("", "decoder_" if m.is_causal else "encoder_")]
                real = [scores[mask] if len(scores) == len(mask) else scores for scores in own]
                assert len(own) == len(out[f"{side}router_logits"])
                for scores, given in zip(own, out[f"{side}router_logits"], strict=True):
                    # padding that was not routed has zeros
                    routed = given if len(given) == len(scores) else given[given.any(-1)]
                    torch.testing.assert_close(routed, scores)
                balance += naive_balance(real, 2) if own else 0
            torch.testing.assert_close(out.aux_loss, balance)
            if "loss" in plain:
                torch.testing.assert_close(out.loss, plain.loss + 0.5 * out.aux_loss)
                assert out.loss > plain.loss
            model.config.output_router_logits = True
            torch.testing.assert_close(model(**batch).get("loss", out.aux_loss), out.get("loss", out.aux_loss))
            as_tuple = model(**batch, return_dict=False)
            assert isinstance(as_tuple, tuple)
            assert len(as_tuple) == len(out.to_tuple())
            model.config.output_router_logits = False


@pytest.mark.parametrize(
    ("name", "head"), [("sandwich_lm experts", AutoModelForCausalLM), ("par_bert experts", AutoModelForMaskedLM)]
)
@pytest.mark.parametrize("order", ["seswee", "s2emem"])
@torch.no_grad()
def test_the_load_balancing_loss_is_that_of_texts_without_padding(name, head, order):
    model = ROWS[name].build(head, order, router_aux_loss_coef=0.7)
    batch, asked = padded(model), {"output_router_logits": True}
    out, alone = model(**batch, **asked), [model(**text, **asked) for text in texts(batch)]
    rows = [torch.cat(scores) for scores in zip(*(each.router_logits for each in alone), strict=True)]
    real = batch["attention_mask"].flatten().bool()
    for scores, wanted in zip(out.router_logits, rows, strict=True):
        assert scores.shape == (27, 4)
        torch.testing.assert_close(scores[real], wanted, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(out.aux_loss, naive_balance(rows, 2), atol=1e-5, rtol=1e-5)
    # as transformers has it, the number of items is that of the other loss
    labels = {"labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)}
    few, many = (model(**batch, **labels, **asked, num_items_in_batch=number).loss for number in (10, 20))
    extra = model.config.router_aux_loss_coef * out.aux_loss
    torch.testing.assert_close(few - extra, 2 * (many - extra))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_checkpoints_keep_the_gradients_of_the_load_balancing_loss_or_say_that_they_do_not(implementation):
    model = ROWS["sandwich_lm experts"].main("sesfe", router_aux_loss_coef=2.0).train()
    model.set_experts_implementation(implementation)
    batch = labelled(model, AutoModelForCausalLM) | {"output_router_logits": True}
    wanted = backward(model, model(**batch).loss)
    plain = backward(model, model(**batch | {"output_router_logits": False}).loss)
    names = [name for name in wanted if "router" in name]
    assert len(names) == 2
    assert all((wanted[name] - plain[name]).abs().max() > 1e-3 for name in names)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    assert_same(backward(model, model(**batch).loss), wanted, atol=1e-5, rtol=1e-4)
    model.gradient_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(ValueError, match="no gradient under reentrant checkpoints; give"):
        model(**batch)
    for name, parameter in model.named_parameters():
        parameter.requires_grad = "router" not in name
    model(**batch).loss.backward()


def test_a_compiled_graph_adds_it_too():
    torch.compiler.reset()
    model = ROWS["sandwich_lm experts"].main("sesfe").train()
    batch = labelled(model, AutoModelForCausalLM) | {"output_router_logits": True}
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    losses = [each(**batch).loss for each in (model, compiled)]
    torch.testing.assert_close(*losses)
    assert_same(*(backward(model, loss) for loss in losses), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", ["sandwich_lm experts", "par_bert experts"])
@torch.no_grad()
def test_routers_see_no_padding_and_in_a_tail_only_what_is_read(name):
    model, counts = ROWS[name].build(AutoModel, "sesee"), []
    batch = padded(model)
    for layer in model.layers:
        if isinstance(layer.mixer, Experts):
            layer.mixer.router.register_forward_hook(lambda router, given, out: counts.append(len(given[0])))
    model(**batch)
    assert counts == [batch["attention_mask"].sum()] * 3
    counts.clear()
    read = torch.tensor([[3], [6], [0]])
    plan = Plan.of(batch["input_ids"], batch["attention_mask"], read)
    found = model(**batch, plan=plan, use_cache=False)[0]
    assert counts == [batch["attention_mask"].sum(), 3, 3]
    torch.testing.assert_close(found[:, 0], model(**batch)[0][torch.arange(3), read[:, 0]], atol=1e-5, rtol=1e-5)
    # and the loss is that of the same ones
    counts.clear()
    aux = model(**batch, plan=plan, use_cache=False, output_router_logits=True)
    assert counts == [batch["attention_mask"].sum(), 3, 3]
    assert [len(scores) for scores in aux.router_logits] == [27, 3, 3]


def test_initial_weights_are_those_of_other_maps_and_what_joins_the_stream_is_smaller():
    config = small(SandwichLMConfig, sublayer_order="(se)8", hidden_size=64, initializer_range=0.1, **EXPERTS)
    mixer = SandwichLMModel(config).layers[1].mixer
    small_std = 0.1 / 16**0.5
    for weights, std in (
        (mixer.router.weight, 0.1),
        (mixer.experts.gate_up_proj, 0.1),
        (mixer.experts.down_proj, small_std),
        (mixer.shared_expert.up_proj.weight, 0.1),
        (mixer.shared_expert.down_proj.weight, small_std),
    ):
        assert 0.85 * std < weights.std() < 1.15 * std


def test_dropout_is_inside_of_every_expert():
    config = small(SandwichLMConfig, sublayer_order="e", **EXPERTS | {"activation_dropout": 1.0})
    mixer = randomize(SandwichLMModel(config)).layers[0].mixer
    for implementation in IMPLEMENTATIONS:
        config._experts_implementation = implementation
        assert mixer.train()(torch.randn(1, 5, 32))[0].abs().max() == 0
        assert mixer.eval()(torch.randn(1, 5, 32))[0].abs().max() > 0


def test_fields_belong_to_orders_with_experts():
    wrong = [
        ({"sublayer_order": "se"}, "num_experts=None, but the order has sublayers e; give a number"),
        ({"num_experts": 4}, "num_experts=4, but the order has no sublayer e; leave it out"),
        ({"norm_topk_prob": True}, "norm_topk_prob=True, but the order has no sublayer e; leave it out"),
        ({"output_router_logits": True}, "output_router_logits=True, but the order has no sublayer e; leave it out"),
        (
            {"sublayer_order": "se"} | PLAIN | {"num_experts": 1},
            "num_experts_per_tok=2 is more than num_experts=1; give fewer, or more experts",
        ),
        (
            {"sublayer_order": "se", "shared_expert_gate": True} | PLAIN,
            "shared_expert_gate=True, but there is no shared expert; give shared_expert_intermediate_size, or leave it",
        ),
        (
            {"sublayer_order": "se"} | PLAIN | {"num_experts": 0},
            "num_experts=0 is out of range; give a number from 1 to 1000000000",
        ),
    ]
    for options, message in wrong:
        with pytest.raises(ValueError, match=f"^{message}"):
            small(SandwichLMConfig, **options)
    # all of them may be chosen
    small(SandwichLMConfig, sublayer_order="se", **PLAIN | {"num_experts": 2})
    with pytest.raises(ValueError, match=r"no_such_mm.* is not supported"):
        ROWS["sandwich_lm experts"].build(AutoModel).set_experts_implementation("no_such_mm")


def test_some_sublayers_make_a_model_with_or_without_experts():
    model = ROWS["sandwich_lm experts"].build(AutoModelForCausalLM, "sesfe")
    assert take_subset(model, (0, 1, 4)).config.norm_topk_prob
    config = take_subset(model, (0, 2, 3)).config
    assert (config.num_experts, config.norm_topk_prob, config.shared_expert_intermediate_size) == (None, False, 0)


def test_plans_split_and_divide_experts():
    config = small(PARBertConfig, sublayer_order="se", **EXPERTS)
    assert config.base_model_tp_plan["layers.*.mixer.experts.gate_up_proj"] == "packed_colwise"
    assert config.base_model_ep_plan["layers.*.mixer.experts"] == "ep_dispatch_experts"
    assert not any("shared" in name for name in small(PARBertConfig, sublayer_order="se", **PLAIN).base_model_tp_plan)
    assert small(PARBertConfig).base_model_ep_plan == {}
    orders = {"encoder_sublayer_order": "se", "decoder_sublayer_order": "sc"}
    model = FAMILIES["sandwich_seq2seq"][1].from_config(small(SandwichSeq2SeqConfig, **orders, **PLAIN))
    assert isinstance(model, nn.Module)
    assert {name.split(".mixer")[0] for name in model.ep_plan} == {"model.encoder.layers.*"}

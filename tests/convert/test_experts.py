"""Random models with experts, converted: scores, losses, gradients and generated texts."""

import random

import pytest
import torch
from common import assert_same, backward
from common_convert import make

from sublayers import optimize
from sublayers.convert.llama import from_llama

GREEDY = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None, "pad_token_id": 1}
IMPLEMENTATIONS = ("eager", "batched_mm", "grouped_mm")
OWN = {
    "Mixtral": {
        "num_local_experts": (1, 2, 5, 8),
        "sliding_window": (None, None, 3, 7),
        "head_dim": (None, 4, 6),
    },
    "Olmoe": {"num_experts": (2, 5, 8), "norm_topk_prob": (True, False), "attention_bias": (True, False)},
    "Qwen2Moe": {"qkv_bias": (True, False), "shared_expert_intermediate_size": (8, 12)},
    "Qwen3Moe": {"attention_bias": (True, False), "head_dim": (4, 6), "use_sliding_window": (True, False)},
    "Qwen3Next": {
        # transformers' caches fail without any attention
        "layer_types": [
            ["full_attention"],
            ["linear_attention", "full_attention"],
            ["full_attention", "linear_attention"],
        ],
        "attention_bias": (True, False),
        "hidden_act": ("silu",),
        # where little is read, a norm would enlarge how it is rounded
        "rms_norm_eps": (1e-2,),
        "head_dim": (8, 16),
        "linear_conv_kernel_dim": (2, 4),
        "linear_key_head_dim": (4, 6),
        "linear_value_head_dim": (4, 8),
        "linear_num_key_heads": (1, 2),
        "linear_num_value_heads": (2, 4),
        "shared_expert_intermediate_size": (8, 12),
        "num_experts": (0, 2, 8),
        "rope_parameters": (
            {"rope_theta": 50.0, "partial_rotary_factor": 0.25},
            {"rope_theta": 1e4, "rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5},
        ),
    },
}
OF_QWEN = {
    "num_experts": (2, 5, 8),
    "norm_topk_prob": (True, False),
    "moe_intermediate_size": (4, 8, 13),
    "decoder_sparse_step": (1, 1, 2),
    "mlp_only_layers": ([], [0], [1, 2]),
    "sliding_window": (3, 7),
}


def drawn(prefix, seed):
    """A language model of transformers of this kind whose options are drawn."""
    draw = random.Random(f"{prefix} {seed}")
    chances = {
        "hidden_size": (16, 24),
        "intermediate_size": (12, 20, 13),
        "num_attention_heads": (2, 4),
        "num_key_value_heads": (1, 2),
        "num_hidden_layers": (1, 2, 3, 4),
        "hidden_act": ("silu", "gelu", "relu"),
        "tie_word_embeddings": (True, False),
        "num_experts_per_tok": (1, 2),
        "router_aux_loss_coef": (0.001, 0.7),
        "rope_parameters": ({"rope_theta": 50.0}, {"rope_theta": 1e4, "rope_type": "linear", "factor": 2.0}),
        **(OF_QWEN if prefix.startswith("Qwen") else {}),
        **OWN[prefix],
    }
    options = {name: draw.choice(values) for name, values in chances.items()}
    if "layer_types" in options:
        options["num_hidden_layers"] = len(options["layer_types"])
    options["num_experts_per_tok"] = min(options["num_experts_per_tok"], options.get("num_local_experts", 2))
    return make(f"{prefix}ForCausalLM", **options, initializer_range=0.1)


def padded(length=11):
    """Rows of three lengths with padding on the left."""
    mask = torch.ones(3, length, dtype=torch.long)
    mask[1, :4] = mask[2, :7] = 0
    ids = torch.randint(3, 61, (3, length), generator=torch.Generator().manual_seed(length))
    return {"input_ids": ids.masked_fill(mask == 0, 1), "attention_mask": mask}


def labels_of(batch):
    """Every token that follows another."""
    real = batch["attention_mask"].bool()
    return batch["input_ids"].masked_fill(~(real & real.roll(1, 1)), -100)


@pytest.mark.parametrize("prefix", OWN)
@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.full) for seed in range(3, 40))])
def test_they_score_learn_and_write_the_same(prefix, seed):
    source = drawn(prefix, seed)
    model, _ = from_llama(source)
    model.set_experts_implementation(IMPLEMENTATIONS[seed % 3])
    # an own loop knows all widths
    source.set_experts_implementation("eager")
    batch = padded()
    real, labels = batch["attention_mask"].bool(), labels_of(batch)
    # a layer of theirs is two of ours, and theirs fail where no layer has experts
    asked = {"output_router_logits": True} if "e" in model.config.order else {}
    theirs, ours = (each(**batch, labels=labels, **asked) for each in (source, model))
    # in 32 bits, theirs of a recurrence are farther from those in 64 bits
    size = theirs.logits[real].abs().max() if "r" in model.config.order else 1
    torch.testing.assert_close(ours.logits[real] / size, theirs.logits[real] / size, atol=1e-5, rtol=1e-5)
    for name in ("loss", "aux_loss") if asked else ("loss",):
        torch.testing.assert_close(ours[name], theirs[name], atol=1e-5, rtol=1e-5)
    for found, wanted in zip(ours.get("router_logits", ()), theirs.get("router_logits") or (), strict=True):
        torch.testing.assert_close(found[real.flatten()], wanted[real.flatten()], atol=1e-5, rtol=1e-5)
    routers = [
        {name.rpartition("layers.")[2].split(".")[0]: gradient for name, gradient in found.items() if part in name}
        for found, part in ((backward(model, ours.loss), ".router."), (backward(source, theirs.loss), ".mlp.gate.w"))
    ]
    routers[1] = {str(2 * int(layer) + 1): gradient for layer, gradient in routers[1].items()}
    assert_same(*routers, atol=1e-4, rtol=1e-3)
    for options in ({}, {"num_beams": 3}, {"use_cache": False}):
        texts = [each.generate(**batch, **GREEDY, **options) for each in (source, model)]
        assert texts[0].tolist() == texts[1].tolist()


def test_the_loss_of_a_language_model_alone_has_the_routers_share():
    batch = padded()
    for head, labels in (("ForCausalLM", labels_of(batch)), ("ForSequenceClassification", torch.tensor([0, 1, 1]))):
        source = make(f"Mixtral{head}", output_router_logits=True, router_aux_loss_coef=0.5, num_key_value_heads=2)
        source.set_experts_implementation("batched_mm")
        model = optimize(source, verify=True)
        assert model.get_experts_implementation() == {"": "batched_mm"}
        losses = [each(**batch | {"labels": labels}).loss for each in (source, model)]
        torch.testing.assert_close(*losses, atol=1e-5, rtol=1e-5)

"""Language models of attention and Mamba-2, against transformers' own of many sizes, and what is refused of them."""

import random
from typing import Any

import pytest
import torch
from common import tokens
from common_convert import BAMBA, GRANITE, NEMOTRON, convert, make
from transformers import AutoModelForCausalLM

from sublayers import optimize
from sublayers.convert.hybrids import from_hybrid
from sublayers.convert.verify import compare

SOURCES = {"NemotronH": NEMOTRON, "Bamba": BAMBA, "GraniteMoeHybrid": GRANITE}


def draw(prefix, seed):
    """Options of a random small model, with an attention, without which transformers' caches fail."""
    pick = random.Random(seed)
    heads, groups = pick.choice([1, 2, 4]), pick.choice([1, 2])
    recurrent = 2 * groups
    options: dict[str, Any] = {
        "num_attention_heads": heads,
        "num_key_value_heads": pick.choice([1, heads]),
        "max_position_embeddings": 64,
    }
    options |= {name: pick.random() < 0.3 for name in ("attention_bias", "mlp_bias", "tie_word_embeddings")}
    state, kernel, chunk = pick.choice([3, 8]), pick.choice([2, 4]), pick.choice([4, 16, 128])
    if prefix == "NemotronH":
        pattern = "".join(pick.choice("M-*") for _ in range(pick.randint(1, 5))) + "*" + pick.choice(["", "M", "-"])
        options |= {"hybrid_override_pattern": pattern, "mamba_num_heads": recurrent, "n_groups": groups}
        options |= {"mamba_head_dim": pick.choice([4, 6]), "head_dim": pick.choice([4, 6]), "ssm_state_size": state}
        options |= {"conv_kernel": kernel, "chunk_size": chunk, "time_step_min": pick.choice([0.001, 0.2])}
        return options | {"mlp_hidden_act": pick.choice(["relu2", "silu"]), "layer_norm_epsilon": 0.01}
    layers = pick.randint(1, 4)
    options["num_hidden_layers"] = layers
    options |= {"mamba_n_heads": recurrent, "mamba_n_groups": groups, "mamba_d_state": state, "mamba_d_conv": kernel}
    options |= {"mamba_chunk_size": chunk, "time_step_limit": (pick.choice([0.0, 0.3]), float("inf"))}
    if prefix == "Bamba":
        return options | {"rms_norm_eps": pick.choice([1e-6, 0.01]), "attn_layer_indices": [pick.randrange(layers)]}
    # factors make states so small that a norm would enlarge how they are rounded
    options["rms_norm_eps"] = 0.01
    kinds = [pick.choice(["linear_attention", "full_attention"]) for _ in range(layers)]
    kinds[pick.randrange(layers)] = "full_attention"
    options |= {"layer_types": kinds, "shared_intermediate_size": pick.choice([4, 12])}
    options |= {"num_local_experts": pick.choice([0, 3]), "num_experts_per_tok": pick.choice([1, 2])}
    options["position_embedding_type"] = pick.choice([None, "rope"])
    # real ones make scores smaller
    options["attention_multiplier"] = pick.choice([1.0, 0.5, 0.1])
    factors = ("embedding_multiplier", "residual_multiplier", "logits_scaling")
    return options | {factor: pick.choice([1.0, 0.5, 2.5]) for factor in factors}


@pytest.mark.parametrize("prefix", SOURCES)
@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.full) for seed in range(4, 40))])
@torch.no_grad()
def test_random_models_are_converted(prefix, seed):
    source = make(f"{prefix}ForCausalLM", **draw(prefix, seed))
    model, _ = from_hybrid(source)
    # scores, and what is written from a cache, padded on all sides
    assert compare(model, source) < 1e-5
    ids, mask = tokens(2, 13), torch.ones(2, 13, dtype=torch.long)
    mask[1, :5] = 0
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": -1, "pad_token_id": 1, "attention_mask": mask}
    written = model.generate(ids, **options)
    assert torch.equal(written, source.generate(ids, **options, use_cache=False))


@pytest.mark.parametrize("prefix", SOURCES)
@torch.no_grad()
def test_folders_and_models_in_memory_are_converted(prefix, tmp_path):
    source = make(f"{prefix}ForCausalLM", **SOURCES[prefix])
    source.save_pretrained(tmp_path / "source")
    report = convert(tmp_path, "--verify")
    assert not report["left_out"]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert model.config.sublayer_order == {"NemotronH": "rfsr", "Bamba": "rfsfrf"}.get(prefix, "resere")
    made, ids = optimize(source, verify=True), tokens(2, 9)
    for each in (model, made):
        found, wanted = each(ids).logits, source(ids).logits
        assert (found - wanted).abs().max() < 1e-6 + 5e-6 * wanted.abs().max()
    other, _ = from_hybrid(source, {"NemotronH": "r2fs", "Bamba": "r2sf3"}.get(prefix, "r2se3"))
    assert other.num_parameters() == model.num_parameters()


REFUSED = [
    ("NemotronH", {"hybrid_override_pattern": "ME*-"}, "layers_block_type with 'moe' cannot be converted"),
    ("NemotronH", {"use_bias": True}, "use_bias=True cannot be converted; only nemotron_h with use_bias=False can"),
    ("NemotronH", {"use_conv_bias": False}, "use_conv_bias=False cannot be converted"),
    ("NemotronH", {"mamba_hidden_act": "relu"}, "mamba_hidden_act='relu' cannot be converted"),
    ("NemotronH", {"conv_kernel": 1}, "recurrence_conv_kernel=1 sees no other token"),
    ("Bamba", {"mamba_proj_bias": True}, "mamba_proj_bias=True cannot be converted"),
    ("Bamba", {"mamba_conv_bias": False}, "mamba_conv_bias=False cannot be converted"),
    ("Bamba", {"hidden_act": "gelu"}, "hidden_act='gelu' cannot be converted; only bamba with hidden_act='silu' can"),
    ("Bamba", {"z_loss_coefficient": 0.1}, "z_loss_coefficient=0.1 cannot be converted"),
    ("GraniteMoeHybrid", {"mamba_conv_bias": False}, "mamba_conv_bias=False cannot be converted"),
    ("GraniteMoeHybrid", {"time_step_limit": (0.0, 2.0)}, "steps here have no upper limit"),
    ("Bamba", {"time_step_limit": (0.0, 2.0)}, "steps here have no upper limit"),
]


@pytest.mark.parametrize(("prefix", "options", "sentence"), REFUSED)
def test_what_no_model_here_has_is_refused_by_its_option(prefix, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        from_hybrid(make(f"{prefix}ForCausalLM", **SOURCES[prefix] | options))

"""A source in another order keeps the weights of its sublayers, kind by kind."""

import pytest
import torch
from common_convert import convert, make
from transformers import AutoModel

# of sources in other orders: for each of their modules, our places for it, layer by layer, and its name there
ORDERED = {
    "GPT2Model": (["ssff"], {"h.{}.attn.c_proj": ((0, 1), "mixer.o_proj"), "h.{}.mlp.c_proj": ((2, 3), "mixer.fc2")}),
    "BertModel": (
        ["sf5"],
        {
            "encoder.layer.{}.attention.self.query": ((0,), "mixer.q_proj"),
            "encoder.layer.{}.output.dense": ((1, 2), "mixer.fc2"),
        },
    ),
    "DistilBertModel": (
        ["sf3"],
        {
            "transformer.layer.{}.attention.q_lin": ((0,), "mixer.q_proj"),
            "transformer.layer.{}.ffn.lin2": ((1, 2), "mixer.fc2"),
            "transformer.layer.{}.output_layer_norm": ((1, 2), "norm"),
        },
    ),
    "ModernBertModel": (
        ["sws2f3"],
        {
            "layers.{}.attn.Wo": ((0, 1, None, 2), "mixer.o_proj"),
            "layers.{}.mlp.Wo": ((4, 5, 6), "mixer.fc2"),
        },
    ),
    "Qwen3Model": (
        ["ssff"],
        {
            "layers.{}.self_attn.q_norm": ((0, 1), "mixer.q_norm"),
            "layers.{}.input_layernorm": ((0, 1), "norm"),
            "layers.{}.mlp.gate_proj": ((2, 3), "mixer.gate"),
            "layers.{}.post_attention_layernorm": ((2, 3), "norm"),
        },
    ),
    "LlamaModel of both sides": (
        ["sf3"],
        {"layers.{}.self_attn.q_proj": ((0,), "mixer.q_proj"), "layers.{}.mlp.gate_proj": ((1, 2), "mixer.gate")},
    ),
    # the n-th attention keeps its maps where it becomes an m
    "BertModel with m": (
        ["sfmf"],
        {
            "encoder.layer.{}.attention.self.query": ((0, 2), "mixer.q_proj"),
            "encoder.layer.{}.output.dense": ((1, 3), "mixer.fc2"),
        },
    ),
    "ModernBertModel with m": (["s(fw)2fmf"], {"layers.{}.attn.Wo": ((0, 2, 4, 6), "mixer.o_proj")}),
    "Qwen3Model with m": (
        ["sfmf"],
        {"layers.{}.self_attn.q_norm": ((0, 2), "mixer.q_norm"), "layers.{}.input_layernorm": ((0, 2), "norm")},
    ),
    "BartModel with m": (
        ["sfmf", "scf(mcf)2"],
        {
            "encoder.layers.{}.self_attn.k_proj": ((0, 2), "mixer.k_proj"),
            "decoder.layers.{}.self_attn.v_proj": ((0, 3, 6), "mixer.v_proj"),
        },
    ),
    **dict.fromkeys(
        ["BartModel", "PegasusModel"],
        (
            ["s2f2", "(sc)3f3"],
            {
                "encoder.layers.{}.self_attn.v_proj": ((0, 1), "mixer.v_proj"),
                "encoder.layers.{}.final_layer_norm": ((2, 3), "norm"),
                "decoder.layers.{}.self_attn_layer_norm": ((0, 2, 4), "norm"),
                "decoder.layers.{}.encoder_attn.out_proj": ((1, 3, 5), "mixer.o_proj"),
                "decoder.layers.{}.fc2": ((6, 7, 8), "mixer.fc2"),
            },
        ),
    ),
}


@pytest.mark.parametrize("name", ORDERED)
def test_another_order_takes_the_sublayers_of_each_kind_in_turn(name, tmp_path, capsys):
    orders, places = ORDERED[name]
    options = {"is_causal": False} if "both" in name else {"num_hidden_layers": 4} if "Modern" in name else {}
    # a language model gets the head that is tied to its embeddings
    source = make(name.split()[0], tie_word_embeddings=True, **options)
    source.save_pretrained(tmp_path / "source")
    flags = ["--sublayer_order"] if len(orders) == 1 else ["--encoder_sublayer_order", "--decoder_sublayer_order"]
    report = convert(tmp_path, *(f"{flag}={order}" for flag, order in zip(flags, orders, strict=True)))
    ours = AutoModel.from_pretrained(tmp_path / "ours")
    for theirs, (numbers, part) in places.items():
        side = f"{theirs.split('.')[0]}." if len(orders) > 1 else ""
        for layer, place in enumerate(numbers):
            if place is not None:
                # GPT-2 keeps its matrices transposed
                expected = source.get_submodule(theirs.format(layer)).weight
                expected = expected.T if "GPT2" in name else expected
                assert torch.equal(ours.get_submodule(f"{side}layers.{place}.{part}").weight, expected)
    if name == "DistilBertModel":
        left = "transformer.layer.1."
        assert {*report["left_out"]} == {key for key in source.state_dict() if key.startswith((f"{left}a", f"{left}s"))}
        assert {key.split(".")[1] for key in report["new"] if "layers" in key} == {"3"}
        assert f"dropped {left}attention, {left}sa_layer_norm" in capsys.readouterr().err


def test_an_order_of_another_length_is_refused_where_sublayers_are_not_optional(tmp_path):
    make("Qwen3ForCausalLM").save_pretrained(tmp_path / "source")
    with pytest.raises(ValueError, match="the order 'sf5' does not fit a checkpoint with 2 s, 2 f"):
        convert(tmp_path, "--sublayer_order=sf5")

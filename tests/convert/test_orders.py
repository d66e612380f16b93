"""A source in another order keeps the weights of its sublayers, kind by kind."""

import pytest
import torch
from common_convert import convert, make
from transformers import AutoModel

# sources in other orders: a part of each of their layers, our places for it, and its name there
BART = [
    ("encoder.layers.{}.self_attn.v_proj", (0, 1), "mixer.v_proj"),
    ("encoder.layers.{}.final_layer_norm", (2, 3), "norm"),
    ("decoder.layers.{}.self_attn_layer_norm", (0, 2, 4), "norm"),
    ("decoder.layers.{}.encoder_attn.out_proj", (1, 3, 5), "mixer.o_proj"),
    ("decoder.layers.{}.fc2", (6, 7, 8), "mixer.fc2"),
]
QUERY, DENSE, WO = "encoder.layer.{}.attention.self.query", "encoder.layer.{}.output.dense", "layers.{}.attn.Wo"
ORDERED = {
    "GPT2Model ssff": [("h.{}.attn.c_proj", (0, 1), "mixer.o_proj"), ("h.{}.mlp.c_proj", (2, 3), "mixer.fc2")],
    "BertModel sf5": [(QUERY, (0,), "mixer.q_proj"), (DENSE, (1, 2), "mixer.fc2")],
    "DistilBertModel sf3": [
        ("transformer.layer.{}.attention.q_lin", (0,), "mixer.q_proj"),
        ("transformer.layer.{}.ffn.lin2", (1, 2), "mixer.fc2"),
        ("transformer.layer.{}.output_layer_norm", (1, 2), "norm"),
    ],
    "ModernBertModel sws2f3": [(WO, (0, 1, None, 2), "mixer.o_proj"), ("layers.{}.mlp.Wo", (4, 5, 6), "mixer.fc2")],
    "Qwen3Model ssff": [
        ("layers.{}.self_attn.q_norm", (0, 1), "mixer.q_norm"),
        ("layers.{}.input_layernorm", (0, 1), "norm"),
        ("layers.{}.mlp.gate_proj", (2, 3), "mixer.gate"),
        ("layers.{}.post_attention_layernorm", (2, 3), "norm"),
    ],
    # of both sides
    "LlamaModel sf3": [
        ("layers.{}.self_attn.q_proj", (0,), "mixer.q_proj"),
        ("layers.{}.mlp.gate_proj", (1, 2), "mixer.gate"),
    ],
    # the n-th attention keeps its maps where it becomes an m
    "BertModel sfmf": [(QUERY, (0, 2), "mixer.q_proj"), (DENSE, (1, 3), "mixer.fc2")],
    "ModernBertModel s(fw)2fmf": [(WO, (0, 2, 4, 6), "mixer.o_proj")],
    "Qwen3Model sfmf": [("layers.{}.self_attn.q_norm", (0, 2), "mixer.q_norm")],
    "BartModel sfmf scf(mcf)2": [
        ("encoder.layers.{}.self_attn.k_proj", (0, 2), "mixer.k_proj"),
        ("decoder.layers.{}.self_attn.v_proj", (0, 3, 6), "mixer.v_proj"),
    ],
    "BartModel s2f2 (sc)3f3": BART,
    "PegasusModel s2f2 (sc)3f3": BART,
}


@pytest.mark.parametrize("case", ORDERED)
def test_another_order_takes_the_sublayers_of_each_kind_in_turn(case, tmp_path, capsys):
    name, *orders = case.split()
    options = {"is_causal": False} if name == "LlamaModel" else {"num_hidden_layers": 4} if "Modern" in name else {}
    # a language model gets the head that is tied to its embeddings
    source = make(name, tie_word_embeddings=True, **options)
    source.save_pretrained(tmp_path / "source")
    flags = ["--sublayer_order"] if len(orders) == 1 else ["--encoder_sublayer_order", "--decoder_sublayer_order"]
    report = convert(tmp_path, *(f"{flag}={order}" for flag, order in zip(flags, orders, strict=True)))
    ours = AutoModel.from_pretrained(tmp_path / "ours")
    for theirs, numbers, part in ORDERED[case]:
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

import argparse

import pytest
import torch
from common import randomize, tokens
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from sublayers.training.convert import main
from sublayers.training.convert_lm import from_fairseq_lm


@pytest.fixture
def gpt2(tmp_path):
    config = GPT2Config(vocab_size=61, n_positions=64, n_embd=16, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=2)
    model = randomize(GPT2LMHeadModel(config))
    model.save_pretrained(tmp_path / "gpt2")
    return model


def fairseq_state(layers=2, size=8):
    state = {"decoder.version": torch.ones(1), "decoder.embed_tokens.weight": torch.randn(61, size)}
    shapes = {"fc1": (12, size), "fc2": (size, 12), "self_attn_layer_norm": (size,), "final_layer_norm": (size,)}
    shapes |= {f"self_attn.{name}_proj": (size, size) for name in ("q", "k", "v", "out")}
    for i in range(layers):
        for name, shape in shapes.items():
            state[f"decoder.layers.{i}.{name}.weight"] = torch.randn(shape)
            state[f"decoder.layers.{i}.{name}.bias"] = torch.randn(shape[0])
    return state


def test_a_gpt2_folder_becomes_a_folder_of_ours(gpt2, tmp_path, capsys):
    main([str(tmp_path / "gpt2"), str(tmp_path / "ours")])
    assert "(sf)2" in capsys.readouterr().out
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    torch.testing.assert_close(model(tokens(2, 9)).logits, gpt2(tokens(2, 9)).logits, atol=1e-5, rtol=0)


def test_another_order_takes_the_sublayers_of_each_kind_in_turn(gpt2, tmp_path):
    main([str(tmp_path / "gpt2"), str(tmp_path / "ours"), "--sublayer_order", "ssff"])
    layers = AutoModelForCausalLM.from_pretrained(tmp_path / "ours").model.layers
    for i, block in enumerate(gpt2.transformer.h):
        assert torch.equal(layers[i].mixer.o_proj.weight, block.attn.c_proj.weight.T)
        assert torch.equal(layers[2 + i].mixer.fc2.weight, block.mlp.c_proj.weight.T)


def test_a_fairseq_checkpoint_needs_its_heads_and_nothing_else(tmp_path):
    path = tmp_path / "checkpoint.pt"
    torch.save({"model": fairseq_state(), "args": argparse.Namespace(arch="transformer_lm")}, path)
    with pytest.raises(ValueError, match="pass --num-attention-heads"):
        main([str(path), str(tmp_path / "ours")])
    main([str(path), str(tmp_path / "ours"), "--num-attention-heads=2"])
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "ours").config.num_sublayers == 4


def test_code_in_a_checkpoint_is_not_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return open, (str(tmp_path / "sprung"), "w")

    path = tmp_path / "trap.pt"
    torch.save({"model": fairseq_state(), "extra_state": Trap()}, path)
    with pytest.raises(ValueError, match="it is not read"):
        main([str(path), str(tmp_path / "ours"), "--num-attention-heads=2"])
    assert not (tmp_path / "sprung").exists()
    assert not (tmp_path / "ours").exists()


def test_what_does_not_fit_is_one_sentence(gpt2, tmp_path):
    state = fairseq_state()
    with pytest.raises(ValueError, match="the order 'sf2' does not fit a checkpoint with 2 s, 2 f"):
        from_fairseq_lm(state, 2, sublayer_order="sff")
    with pytest.raises(ValueError, match=r"no place for \['decoder.embed_out'\]"):
        from_fairseq_lm(state | {"decoder.embed_out": torch.ones(1)}, 2)
    del state["decoder.layers.1.fc1.bias"]
    with pytest.raises(ValueError, match=r"has no \['decoder.layers.1.fc1.bias'\]"):
        from_fairseq_lm(state, 2)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note").touch()
    with pytest.raises(FileExistsError, match="full is not empty; choose another folder"):
        main([str(tmp_path / "gpt2"), str(tmp_path / "full")])

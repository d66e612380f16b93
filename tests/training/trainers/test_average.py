import json

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from transformers import BartConfig, BartForConditionalGeneration

from sublayers.training.trainers.average import average_checkpoints


def weights(seed: int, **changes: torch.Tensor) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {
        "a.weight": torch.randn(3, 5, generator=draw),
        "a.bias": torch.randn(5, generator=draw).bfloat16(),
        "steps": torch.tensor([seed, 7]),
        "mask": torch.tensor([seed % 2 == 0]),
    } | changes


def saved(folder, tensors: dict[str, torch.Tensor], shards: int = 1) -> str:
    folder.mkdir()
    names = sorted(tensors)
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
    else:
        places = {name: f"model-{i % shards:05}-of-{shards:05}.safetensors" for i, name in enumerate(names)}
        for place in set(places.values()):
            save_file({name: tensors[name] for name in names if places[name] == place}, folder / place)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return str(folder)


def test_is_the_mean_of_all_floating_point_weights_and_the_last_of_all_others(tmp_path):
    # of one number the sum overflows, another has 8 bits
    changes = {"huge": torch.full((2,), 3e38)}
    states = [weights(seed, **changes, bits=torch.ones(5).to(torch.float8_e4m3fn)) for seed in range(3)]
    states[0]["bits"] = -2 * torch.ones(5)
    # one of them is in several files
    folders = [saved(tmp_path / str(seed), state, shards=1 + seed) for seed, state in enumerate(states)]
    average = average_checkpoints(folders)
    assert average.keys() == states[0].keys()
    for name in ("a.weight", "a.bias", "huge", "bits"):
        mean = sum(state[name].double() for state in states) / 3
        assert average[name].dtype == states[2][name].dtype
        assert torch.equal(average[name].double(), mean.to(average[name].dtype).double())
    assert average["steps"].tolist() == [2, 7]
    assert average["mask"].tolist() == [True]
    assert torch.equal(average_checkpoints(folders[:1])["a.weight"], states[0]["a.weight"])


def test_reads_what_transformers_saves_with_tied_weights_once(tmp_path):
    sizes = {"vocab_size": 9, "d_model": 4, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 1}
    config = BartConfig(**sizes, decoder_attention_heads=1, encoder_ffn_dim=4, decoder_ffn_dim=4)
    models = [BartForConditionalGeneration(config) for _ in range(2)]
    for n, (model, size) in enumerate(zip(models, ("1GB", "1KB"), strict=True)):
        model.save_pretrained(tmp_path / str(n), max_shard_size=size)
    assert not (tmp_path / "1" / "model.safetensors").exists()
    mean = BartForConditionalGeneration(config)
    mean.load_state_dict(average_checkpoints([tmp_path / "0", tmp_path / "1"]), strict=False)
    assert isinstance(mean.lm_head, nn.Linear)
    for (name, parameter), one, two in zip(
        mean.named_parameters(), models[0].parameters(), models[1].parameters(), strict=True
    ):
        torch.testing.assert_close(parameter, (one + two) / 2, msg=name)


def test_refuses_what_is_not_of_one_model(tmp_path):
    first = saved(tmp_path / "first", weights(0))
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"empty"):
        average_checkpoints([first, tmp_path / "empty"])
    more = saved(tmp_path / "more", weights(1, extra=torch.ones(1)))
    other = saved(tmp_path / "other", weights(1, **{"a.weight": torch.ones(5, 3)}))
    for name, folders in {"extra": [first, more], "a.weight": [first, other]}.items():
        for pair in (folders, folders[::-1]):
            with pytest.raises(ValueError, match=f"^{name} differs in shape among .*first"):
                average_checkpoints(pair)

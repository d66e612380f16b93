"""Folders that an older version of the package saved, made on the spot from the history of the repository."""

import os
import subprocess
from pathlib import Path

import pytest
import torch
import transformers
from launched import python
from safetensors.torch import load_file

import sublayers  # noqa: F401
from sublayers.training import cli

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
# version 0.1, before training had rooms
COMMIT = "3e737f0331b4ccdf8f5da9f4c59edab88fc2455a"
# run with the older package, its tests' families and an empty cache: each head plain and with its code, and its outputs
SAVE = """
import sys
from pathlib import Path
import torch
from common import randomize, token_ids
from families import HEADS, small
from safetensors.torch import save_file
import sublayers
assert sublayers.__file__.startswith(str(Path().absolute()))
for config_class, auto_class in HEADS:
    model = randomize(auto_class.from_config(small(config_class)))
    inputs = {"input_ids": token_ids(auto_class, 2, 7)}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = inputs["input_ids"].flip(1)
    with torch.no_grad():
        found = model(**inputs).items()
    outputs = {name: value.contiguous() for name, value in found if isinstance(value, torch.Tensor)}
    for kind in ("plain", "self_contained"):
        folder = Path(sys.argv[1], kind, f"{auto_class.__name__}-{type(model).__name__}")
        model.save_pretrained(folder, self_contained=kind == "self_contained")
        save_file(inputs, folder / "inputs.safetensors")
        save_file(outputs, folder / "outputs.safetensors")
"""

# run where the package cannot be imported: what a folder's code writes with a cache, and without
GENERATE = """
import sys
sys.modules["sublayers"] = None
import torch
import transformers
auto_class, folder = sys.argv[1:]
model = getattr(transformers, auto_class).from_pretrained(folder, trust_remote_code=True)
options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "pad_token_id": 1}
for use_cache in (True, False):
    print(model.generate(torch.arange(3, 9)[None], use_cache=use_cache, **options).tolist())
"""


@pytest.fixture(scope="module")
def older(tmp_path_factory):
    found = subprocess.run(["git", "archive", COMMIT], cwd=ROOT, capture_output=True, check=False)
    if found.returncode:
        pytest.skip("the history of the repository is not there")
    source, saved = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("saved")
    subprocess.run(["tar", "x", "-C", str(source)], input=found.stdout, check=True)
    python("-c", SAVE, saved, home=source, PYTHONPATH=f"{source}{os.pathsep}{source / 'tests'}")
    return saved


@pytest.mark.parametrize("kind", ["plain", "self_contained"])
@pytest.mark.full
def test_what_version_01_saved_gives_the_same_outputs(older, kind):
    folders = sorted((older / kind).iterdir())
    assert len(folders) == 25
    for folder in folders:
        model = getattr(transformers, folder.name.partition("-")[0]).from_pretrained(folder)
        assert type(model).__module__.startswith("sublayers.")
        with torch.no_grad():
            outputs = model(**load_file(folder / "inputs.safetensors"))
        for name, expected in load_file(folder / "outputs.safetensors").items():
            torch.testing.assert_close(outputs[name], expected, atol=1e-6, rtol=1e-5, msg=f"{folder.name}: {name}")


@pytest.mark.full
def test_export_mends_the_code_of_what_version_01_saved(older, tmp_path):
    for auto_class in ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM"):
        folder = next((older / "self_contained").glob(f"{auto_class}-*"))
        assert not (folder / "versions.py").exists()
        mended = tmp_path / folder.name
        cli.main(["export", str(folder), str(mended)])
        cached, uncached = python("-c", GENERATE, auto_class, mended, home=tmp_path).splitlines()[-2:]
        assert cached == uncached

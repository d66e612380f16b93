"""What a report of a conversion has to say."""

import re

import torch
from safetensors.torch import load_file


def follow(tensor, how):
    """Do to a source's tensor what a report says was done."""
    kind, *then = how.split(", ")
    if found := re.fullmatch(r"(rows|columns) (\d+) to (\d+)", kind):
        places = slice(int(found[2]), int(found[3]) + 1)
        tensor = tensor[places] if found[1] == "rows" else tensor[:, places]
    elif kind == "rows in reverse order":
        tensor = tensor.flip(0)
    else:
        assert kind == "whole"
    assert not then or then[0] in ("transposed", "in another shape")
    return tensor.T if "transposed" in then else tensor


def assert_complete(report, source, folder, new=()):
    """Every tensor of the source has its place or a reason, and every saved parameter is what the report says."""
    assert report["taken_over"].keys() | report["left_out"].keys() == source.keys()
    assert not report["taken_over"].keys() & report["left_out"].keys()
    found = load_file(folder / "model.safetensors")
    seen = set()
    for name, parameters in report["taken_over"].items():
        for parameter, how in parameters.items():
            seen.add(parameter)
            # what is tied is saved once
            if parameter in found:
                expected = follow(source[name], how)
                assert torch.equal(found[parameter], expected.reshape(found[parameter].shape)), (name, parameter)
    assert found.keys() - seen == set(new)

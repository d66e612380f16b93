import argparse

import pytest
import torch

from sublayers.training.trainers.machine import device


def test_a_device_that_the_machine_has_is_read_and_another_one_is_one_sentence():
    assert device("cpu") == torch.device("cpu")
    # no machine has so many
    for name in ("cuda:999", "toaster", "mps:7"):
        with pytest.raises(
            argparse.ArgumentTypeError, match=rf"^this machine has no device '{name}' \([^\n]*\); give cpu$"
        ):
            device(name)

import gc
import os

# nothing is downloaded, and two workers share two cores
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import hypothesis
import pytest
import torch

torch.set_num_threads(1)
hypothesis.settings.register_profile("tests", deadline=None, derandomize=True)
hypothesis.settings.load_profile("tests")


def pytest_addoption(parser):
    parser.addoption("--kills", type=int, default=1, help="at how many writes each training command is killed")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def pytest_collection_finish():
    # what has been imported stays; the collector need not look through it whenever a Trainer calls it
    gc.collect()
    gc.freeze()

import gc
import os
from collections import Counter

# nothing is downloaded, and two workers share two cores
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import hypothesis
import pytest
import torch

# tests of the contract that every family runs in `make test`
SIBLINGS = {
    "test_saves_and_loads_bit_exactly_through_the_auto_classes",
    "test_equals_a_naive_network_for_any_options_in_any_order",
    "test_equals_a_naive_network_in_every_pair_of_orders",
    "test_refuses_bad_configs",
}

torch.set_num_threads(1)
hypothesis.settings.register_profile("tests", deadline=None, derandomize=True)
hypothesis.settings.load_profile("tests")


def pytest_addoption(parser):
    parser.addoption("--kills", type=int, default=1, help="at how many writes each training command is killed")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Leave to `make test-full` what others stand for.

    Those are the cases of a test behind the first ones that `representatives` counts, and of a family that is the
    sibling of another one the inherited tests but for SIBLINGS.
    """
    seen = Counter()
    for item in items:
        seen[item.parent.nodeid, item.originalname] += 1
        stands_for = item.get_closest_marker("representatives")
        is_own = item.cls is None or item.originalname in vars(item.cls)
        is_left = not is_own and "is_sibling" in vars(item.cls) and item.originalname not in SIBLINGS
        if is_left or (stands_for and seen[item.parent.nodeid, item.originalname] > stands_for.args[0]):
            item.add_marker("full")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def pytest_collection_finish():
    # what has been imported stays; the collector need not look through it whenever a Trainer calls it
    gc.collect()
    gc.freeze()

import gc
import logging
import os
from collections import Counter
from tempfile import TemporaryDirectory

# nothing is downloaded, and two workers share two cores
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import huggingface_hub
import hypothesis
import pytest
import torch
from transformers.utils import logging as transformers_logging

torch.set_num_threads(1)
hypothesis.settings.register_profile("tests", deadline=None, derandomize=True)
hypothesis.settings.load_profile("tests")


def pytest_addoption(parser):
    parser.addoption("--quick", action="store_true", help="mark as slow all but the first case of each test")
    parser.addoption("--kills", type=int, default=1, help="at how many writes each training command is killed")


def pytest_configure(config):
    """Keep what `datasets` caches apart from the user's, also in processes that tests start, and graphs of models."""
    cache = TemporaryDirectory()
    os.environ["HF_DATASETS_CACHE"] = huggingface_hub.constants.HF_HOME = cache.name
    config.add_cleanup(cache.cleanup)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items, config):
    """Leave to `make test-full` the cases of a test behind the first ones that `representatives` counts."""
    seen = Counter()
    for item in items:
        case = item.parent.nodeid, item.originalname
        seen[case] += 1
        representatives = item.get_closest_marker("representatives")
        if representatives and seen[case] > representatives.args[0]:
            item.add_marker("full")
        if config.getoption("quick") and (seen[case] > 1 or item.get_closest_marker("full")):
            item.add_marker("slow")


def pytest_collectstart(collector):
    """What a module draws when it is imported is the same in every run."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def own_environment():
    """Forget what the Trainer's arguments tell Accelerate, such as to shard models."""
    yield
    for name in [name for name in os.environ if name.startswith(("ACCELERATE_", "FSDP_"))]:
        del os.environ[name]


@pytest.fixture
def refusal(capsys):
    """Give the one sentence that a command says instead of running."""
    # the first import of what commands share takes a while
    from sublayers.training import cli

    def refuse(*words):
        words, _ = [str(word) for word in words], capsys.readouterr()
        with pytest.raises(SystemExit, match=r"^2$"):
            cli.main(words)
        said, name = capsys.readouterr().err, f"sublayers {cli.find(words)[0]}: "
        assert said.count(name) == 1
        assert "Traceback" not in said
        return said[said.index(name) :]

    return refuse


@pytest.fixture
def silence(caplog, recwarn):
    """Check that transformers has logged no warning, and that nobody has warned."""
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)
    # what was said once is said again
    transformers_logging.warning_once.cache_clear()
    recwarn.clear()
    yield
    logger.removeHandler(caplog.handler)
    said = [record.getMessage() for record in caplog.get_records("call") if record.levelno >= logging.WARNING]
    # others call what torch will take away
    said += [str(each.message) for each in recwarn if not issubclass(each.category, DeprecationWarning)]
    assert not said


def pytest_collection_finish():
    # what has been imported stays; the collector need not look through it whenever a Trainer calls it
    gc.collect()
    gc.freeze()

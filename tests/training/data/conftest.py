import datasets
import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Keep what `datasets` caches to the test."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))

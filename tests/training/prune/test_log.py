import pytest

from sublayers.training.prune.log import Log, open_log

SETTINGS = {"flags": ["--max_steps=3"], "letters": "sf"}


def test_events_are_read_as_they_were_written(tmp_path):
    log = open_log(tmp_path / "search", "search", SETTINGS)
    log.append("run", order="s2f2", metrics={"eval_loss": 1.5})
    log.append("order", order="sf")
    log.append("run", order="sf", metrics={"eval_loss": 2.5})
    again = Log(tmp_path / "search")
    assert [event["order"] for event in again.events("run")] == ["s2f2", "sf"]
    assert again.events("run")[0]["metrics"]["eval_loss"] == 1.5
    assert again.events("search") == [{"kind": "search", **SETTINGS}]
    # half a line, which a process that was killed has left, is not read and not continued
    with log.file.open("a") as file:
        file.write('{"kind": "order", "order": "s')
    assert len(log.events("order")) == 1
    log.append("order", order="f")
    assert [event["order"] for event in Log(tmp_path / "search").events("order")] == ["sf", "f"]


def test_a_search_goes_on_with_its_own_settings_only(tmp_path):
    open_log(tmp_path, "search", SETTINGS).append("run", order="f")
    assert len(open_log(tmp_path, "search", SETTINGS).events("run")) == 1
    with pytest.raises(FileExistsError, match=r"is a search with letters 'sf', not 'scf'; choose another --output_dir"):
        open_log(tmp_path, "search", {**SETTINGS, "letters": "scf"})
    with pytest.raises(FileExistsError, match=r"is a search with budget None, not 0\.5"):
        open_log(tmp_path, "search", {**SETTINGS, "budget": 0.5})
    # such as a flag that a newer version has
    assert len(open_log(tmp_path, "search", {**SETTINGS, "budget": None}).events("run")) == 1


def test_other_folders_are_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="is not empty and holds no search"):
        open_log(tmp_path, "search", SETTINGS)

import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from sublayers.training.folders import whole_folder

# gets SIGKILL when it renames something for the n-th time
KILLED = """
import os, signal, sys
from pathlib import Path
from sublayers.training.folders import whole_folder

def die(path, target):
    global number
    number -= 1
    if not number:
        os.kill(os.getpid(), signal.SIGKILL)
    rename(path, target)

number, rename, Path.rename = int(sys.argv[2]), Path.rename, die
with whole_folder(Path(sys.argv[1])) as folder:
    for name in "abc":
        (folder / name).write_text(name)
"""


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_folder_is_whole_or_not_there_whenever_its_maker_is_killed(number, tmp_path):
    folder = tmp_path / "new" / "folder"
    ended = subprocess.run([sys.executable, "-c", KILLED, str(folder), str(number)], check=False).returncode
    assert ended in (0, -signal.SIGKILL)
    assert folder.exists() == (ended == 0)
    assert not folder.exists() or {path.name for path in folder.iterdir()} == {*"abc"}


def test_a_folder_that_is_there_is_filled_and_after_an_error_left_empty(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    with suppress(ValueError), whole_folder(folder) as place:
        (place / "a").touch()
        raise ValueError
    assert [path.name for path in tmp_path.rglob("*")] == ["folder"]
    with whole_folder(folder) as place:
        (place / "a").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["folder", "a"]

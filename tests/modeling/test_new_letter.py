"""What a new letter costs: a declaration, a mixer, and their names in the two tables of letters."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "tests" / "new_letter"
TABLES = {
    "configuration/alphabet.py": ("letters.moving_average import LETTER as MOVING_AVERAGE", "MOVING_AVERAGE"),
    "modeling/mixers/builders.py": ("mixers.moving_average import build as build_y", "build_y"),
}


@pytest.mark.full
def test_a_letter_is_two_files(tmp_path):
    package = tmp_path / "sublayers"
    shutil.copytree(ROOT / "src" / "sublayers", package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copyfile(FILES / "letter.py", package / "configuration" / "letters" / "moving_average.py")
    shutil.copyfile(FILES / "mixer.py", package / "modeling" / "mixers" / "moving_average.py")
    for table, (imported, entry) in TABLES.items():
        text = (package / table).read_text()
        start = text.index("from sublayers.")
        line = f"from sublayers.{table.partition('/')[0]}.{imported}\n"
        text = text[:start] + line + text[start:].replace("\n}\n", f'\n    "y": {entry},\n}}\n')
        (package / table).write_text(text)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-n", "0", str(FILES / "checks.py")],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-6000:]

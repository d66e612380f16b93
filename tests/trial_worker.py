"""What processes of a study run: `python trial_worker.py FOLDER JOBS NUMBERS`; each task takes a third of a second."""

import sys
import time
from pathlib import Path

from sublayers.training import trials

NUMBERS = range(100)
PAUSE = 0.3
trials.SILENCE, trials.BEATS, trials.POLL = 2.0, 0.2, 0.1


def square(trial):
    number = trial.user_attrs["task"]["number"]
    print(f"squaring {number}", flush=True)
    time.sleep(PAUSE)
    if number < 0:
        raise ValueError(f"{number} is negative")
    return number**2


def run(folder, jobs=1, numbers=NUMBERS):
    study = trials.open_study("squaring", folder, {"power": 2})
    trials.run_trials(study, square, folder, [{"number": number} for number in numbers], jobs=jobs)
    return study


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]), range(int(sys.argv[3])))

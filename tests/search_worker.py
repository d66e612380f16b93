"""Made-up trainings, which the processes of a search can import."""

import time

from sublayers.training.lab.search.runs import Training

ORDERS = ["sf", "s2f", "s3f", "s4f", "s5f"]


class Fake(Training):
    """Waits instead of training, and notes that it was begun."""

    def run(self, order, seed, folder):
        with (folder.parents[2] / "started").open("a") as file:
            file.write(f"{order} {seed}\n")
        time.sleep(0.3)
        return {"parameters": len(order), "metrics": {"eval_loss": len(order) + seed / 10}}


def note(folder):
    print(f"training in {folder.name}", flush=True)
    return {"files": [path.name for path in folder.iterdir()] if folder.exists() else []}


def fail(folder):
    raise ValueError("the loss is nan")

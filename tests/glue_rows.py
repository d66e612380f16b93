"""Rows for the tasks of GLUE, which a model can learn."""

import json
import random

from sublayers.training.data.glue import GLUE_TASKS

WORDS = ["good", "fine", "great", "bad", "poor", "awful", "film", "plot", "cast", "song"]
# a row of mrpc
GOOD = {"sentence1": "a", "sentence2": "b", "label": 1}


def make_rows(name, number, seed):
    """Rows whose labels depend on the share of good words in the last text."""
    draw, task, rows = random.Random(seed), GLUE_TASKS[name], []
    for idx in range(number):
        texts = [" ".join(draw.choices(WORDS, k=draw.randint(3, 8))) for _ in task.columns]
        good = sum(word in WORDS[:3] for word in texts[-1].split()) / len(texts[-1].split())
        label = round(5 * good, 2) if len(task.labels) == 1 else min(int(good * 4), len(task.labels) - 1)
        rows.append(dict(zip(task.columns, texts, strict=True)) | {"label": label, "idx": idx})
    return rows


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)

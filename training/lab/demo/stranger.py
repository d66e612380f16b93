"""A new process that tries a saved model, as a user does who has just been given the folder."""

import os
import subprocess
import sys

import torch


def run(code: str, *words: str) -> None:
    """Run code with words as its arguments, on as many threads as this process."""
    # transformers would draw a bar while it loads the weights
    environment = os.environ | {"TQDM_DISABLE": "1", "OMP_NUM_THREADS": f"{torch.get_num_threads()}"}
    subprocess.run([sys.executable, "-c", code, *words], check=True, env=environment)

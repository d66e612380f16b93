"""A new process that tries a saved model, as a user does who has just been given the folder."""

import os
import subprocess
import sys


def run(code: str, *words: str) -> None:
    """Run code with words as its arguments."""
    # transformers would draw a bar while it loads the weights
    environment = os.environ | {"TQDM_DISABLE": "1"}
    subprocess.run([sys.executable, "-c", code, *words], check=True, env=environment)

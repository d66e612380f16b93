"""What somebody does who opens a folder as its card says and has never heard of this package, offline.

`python reader_of_cards.py FOLDER...` runs the blocks of Python in each folder's README but for those that import the
package, where the folder lies, and prints what they name: for each folder a list of the classes of models, pipelines
and encoders, in JSON. Encoders leave the embeddings of the card's texts as `embeddings.npy`.
"""

import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import torch

# an import of it fails from here on
sys.modules["sublayers"] = None


def read(folder):
    os.chdir(folder.parent)
    names = {}
    for block in re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL):
        if "import sublayers" not in block:
            exec(compile(block, f"{folder}/README.md", "exec"), names)
    if "embeddings" in names:
        np.save(folder / "embeddings.npy", names["embeddings"])
    if "scores" in names:
        np.save(folder / "scores.npy", names["scores"])
    found = [names[name] for name in ("model", "run", "encoder") if name in names]
    code = type(names["model"]).__module__
    assert code.startswith("transformers_modules."), code
    return [type(each).__name__ for each in found]


torch.set_num_threads(1)
shown = [read(Path(folder)) for folder in sys.argv[1:]]
print(json.dumps(shown))

"""What somebody does who has never heard of this package: run in a process that cannot import it, offline.

`python stranger.py ASKED FOLDER...` loads each folder's model, writes its outputs for what is in `inputs.safetensors`
as `outputs.safetensors`, with what it generates, and saves bodies in `again`. Then it prints what pipelines answer to
what is ASKED, a list of folders with a task and an input each, all in JSON, and saves each pipeline in `again`. Two
tasks are no pipeline's: cosines of pairs of sentences, and losses of texts.
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import pipeline

# an import of it fails from here on
sys.modules["sublayers"] = None


def load(folder):
    config = json.loads((folder / "config.json").read_text())
    [architecture] = config["architectures"]
    [name] = [name for name, found in config["auto_map"].items() if found.endswith(f".{architecture}")]
    model = getattr(transformers, name).from_pretrained(folder, trust_remote_code=True)
    assert type(model).__module__.startswith("transformers_modules."), type(model).__module__
    inputs = load_file(folder / "inputs.safetensors")
    with torch.no_grad():
        outputs = model(**inputs)
    tensors = {name: value.contiguous() for name, value in outputs.items() if isinstance(value, torch.Tensor)}
    if model.can_generate():
        tensors["generated"] = model.generate(inputs["input_ids"], max_new_tokens=5, do_sample=False)
    refusal = ""
    try:
        model(**inputs, tomorrow=None)
    except TypeError as error:
        refusal = str(error)
    assert "unexpected keyword argument 'tomorrow'" in refusal
    save_file(tensors, folder / "outputs.safetensors")
    if name == "AutoModel":
        model.save_pretrained(folder / "again")


def ask(folder, task, given):
    if task == "sentence-similarity":
        from sentence_transformers import SentenceTransformer
        from torch.nn.functional import cosine_similarity

        encoder = SentenceTransformer(folder, device="cpu", trust_remote_code=True)
        first, second = (encoder.encode([*texts], convert_to_tensor=True) for texts in zip(*given, strict=True))
        return cosine_similarity(first, second).tolist()
    if task == "losses":
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
        texts = [tokenizer(text, return_tensors="pt")["input_ids"] for text in given]
        with torch.no_grad():
            return [float(model(input_ids=ids, labels=ids).loss) for ids in texts]
    run = pipeline(task, model=folder, trust_remote_code=True)
    answer = run(**given) if isinstance(given, dict) else run(given)
    run.save_pretrained(f"{folder}/again")
    return answer


def main(asked, *folders):
    torch.set_num_threads(1)
    for folder in folders:
        load(Path(folder))
    print(json.dumps([ask(*question) for question in json.loads(asked)]))


main(*sys.argv[1:])

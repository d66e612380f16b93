import datasets
import pytest
import torch
from tiny_models import save_model
from torch.nn import functional as F

from sublayers import SandwichLMForCausalLM

pytestmark = pytest.mark.slow

trl = pytest.importorskip("trl")
TEXTS = ["a short text", "another one, somewhat longer", "b", "a third text of them", "c d e", "the last of them"]


def test_sft_packs_documents_that_do_not_see_each_other(tmp_path):
    model, tokenizer = save_model(tmp_path / "model", "sandwich_lm", kind="byte")
    settings = {"packing": True, "max_length": 48, "max_steps": 4, "per_device_train_batch_size": 1}
    settings |= {"learning_rate": 0.01, "logging_steps": 1, "train_sampling_strategy": "sequential"}
    settings |= {"use_cpu": True, "bf16": False, "report_to": "none", "save_strategy": "no", "disable_tqdm": True}
    arguments = trl.SFTConfig(output_dir=str(tmp_path / "out"), **settings)
    documents = datasets.Dataset.from_dict({"text": TEXTS})
    trainer = trl.SFTTrainer(str(tmp_path / "model"), arguments, train_dataset=documents)
    assert type(trainer.model) is SandwichLMForCausalLM
    packed = [row["input_ids"] for row in trainer.train_dataset]
    assert len(packed) < len(TEXTS)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[len(packed)] < losses[0]

    expected = []
    for text in TEXTS:
        ids = torch.tensor([*tokenizer(text).input_ids, tokenizer.eos_token_id])
        if "".join(map(chr, ids)) in "".join(map(chr, packed[0])):
            scores = model(ids[None]).logits[0, :-1]
            expected.append(F.cross_entropy(scores, ids[1:], reduction="none"))
    assert sum(len(of_text) + 1 for of_text in expected) == len(packed[0])
    assert len(expected) > 1
    assert losses[0] == pytest.approx(torch.cat(expected).mean().item(), rel=1e-5)

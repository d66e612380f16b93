import subprocess
import sys
from pathlib import Path

import torch
from common import randomize

from sublayers import SandwichLMConfig, SandwichLMForCausalLM

SIZES = {"vocab_size": 60, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4}


def test_two_processes_that_split_or_shard_the_model_equal_one(tmp_path):
    for order in ("sfsff", "sss"):
        config = SandwichLMConfig(
            sublayer_order=order, final_norm=order == "sfsff", max_position_embeddings=64, **SIZES
        )
        with torch.random.fork_rng():
            randomize(SandwichLMForCausalLM(config)).save_pretrained(tmp_path / order)
    worker = Path(__file__).with_name("parallel_worker.py")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    folders = [str(tmp_path / order) for order in ("sfsff", "sss")]
    done = subprocess.run([*launcher, str(worker), *folders], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    # two processes, two ways, two orders
    assert done.stdout.count("equal") == 8

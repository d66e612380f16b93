import subprocess
import sys
from pathlib import Path

import pytest
from families import EXPERTS, TODAY, build

pytestmark = pytest.mark.slow

SIZES = {"vocab_size": 60, "hidden_size": 16, "intermediate_size": 24}
GATE = {"attention_output_gate": True}
OWN = {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}
# families with orders and other options, by the names of their folders
MODELS = {
    "sfsff": ("sandwich_lm", {"sublayer_order": "sfsff"}),
    "swf": ("sandwich_lm", TODAY | {"sublayer_order": "swf", "attention_window": 3} | GATE),
    "gfs": ("sandwich_lm", {"sublayer_order": "gfs", "short_kernel_size": 3}),
    "widths": ("par_bert", {"sublayer_order": "sfsf", "intermediate_size": [24, 16]}),
    "ses": ("sandwich_lm", TODAY | EXPERTS | {"sublayer_order": "ses", "qk_norm_per_head": False} | GATE),
    "sss": ("sandwich_lm", {"sublayer_order": "sss", "final_norm": False}),
    "smfm": ("sandwich_lm", {"sublayer_order": "smfm", "final_norm": False}),
    "sfmf": ("par_bert", {"sublayer_order": "sfmf"}),
    "ssff": ("par_bert", {"sublayer_order": "ssff"}),
    "fsffsf": ("macaron_bert", {"sublayer_order": "fsffsf"}),
    "fsf-fscf": ("macaron_seq2seq", {"encoder_sublayer_order": "fsf", "decoder_sublayer_order": "fscf"}),
    "ss-cc": ("sandwich_seq2seq", {"encoder_sublayer_order": "ss", "decoder_sublayer_order": "cc"} | OWN),
    "sffs": ("par_transformer_xl", {"sublayer_order": "sffs", "adaptive_cutoffs": None}),
    "ssf": ("sandwich_char_lm", {"sublayer_order": "ssf", "attention_span": 16, "span_loss": 0.1}),
    "any": ("iot_seq2seq", {"decoder_orders": ["scf", "fsc", "csf"]}),
}


@pytest.mark.full
def test_two_processes_that_split_or_shard_the_model_equal_one(tmp_path):
    for name, (family, options) in MODELS.items():
        build(family, **SIZES | options).save_pretrained(tmp_path / name)
    worker = Path(__file__).with_name("parallel_worker.py")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    folders = [str(tmp_path / name) for name in MODELS]
    done = subprocess.run([*launcher, str(worker), *folders], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    # two processes, two ways, and one more where there are experts
    assert done.stdout.count("equal") == 4 * len(MODELS) + 2

import subprocess
import sys
from pathlib import Path

import pytest
from common import randomize
from families import TODAY

from sublayers import (
    IOTSeq2SeqConfig,
    IOTSeq2SeqForConditionalGeneration,
    MacaronBertConfig,
    MacaronBertForMaskedLM,
    MacaronSeq2SeqConfig,
    MacaronSeq2SeqForConditionalGeneration,
    PARBertConfig,
    PARBertForMaskedLM,
    PARTransformerXLConfig,
    PARTransformerXLForCausalLM,
    SandwichCharLMConfig,
    SandwichCharLMForCausalLM,
    SandwichLMConfig,
    SandwichLMForCausalLM,
    SandwichSeq2SeqConfig,
    SandwichSeq2SeqForConditionalGeneration,
)

pytestmark = pytest.mark.slow

SIZES = {"vocab_size": 60, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4}
SIZES |= dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0)


@pytest.mark.full
def test_two_processes_that_split_or_shard_the_model_equal_one(tmp_path):
    own = {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}
    blocks = {"num_encoder_blocks": 1, "num_decoder_blocks": 1, "encoder_orders": ["sf", "fs"]}
    models = {
        "sfsff": SandwichLMForCausalLM(SandwichLMConfig(sublayer_order="sfsff", final_norm=True, **SIZES)),
        "swf": SandwichLMForCausalLM(
            SandwichLMConfig(sublayer_order="swf", attention_window=3, final_norm=True, **SIZES | TODAY)
        ),
        "sss": SandwichLMForCausalLM(SandwichLMConfig(sublayer_order="sss", **SIZES)),
        "smfm": SandwichLMForCausalLM(SandwichLMConfig(sublayer_order="smfm", **SIZES)),
        "sfmf": PARBertForMaskedLM(PARBertConfig(sublayer_order="sfmf", **SIZES)),
        "ssff": PARBertForMaskedLM(PARBertConfig(sublayer_order="ssff", **SIZES)),
        "fsffsf": MacaronBertForMaskedLM(MacaronBertConfig(sublayer_order="fsffsf", **SIZES)),
        "fsf-fscf": MacaronSeq2SeqForConditionalGeneration(
            MacaronSeq2SeqConfig(encoder_sublayer_order="fsf", decoder_sublayer_order="fscf", **SIZES)
        ),
        "ss-cc": SandwichSeq2SeqForConditionalGeneration(
            SandwichSeq2SeqConfig(encoder_sublayer_order="ss", decoder_sublayer_order="cc", **SIZES, **own)
        ),
        "sffs": PARTransformerXLForCausalLM(PARTransformerXLConfig(sublayer_order="sffs", **SIZES)),
        "ssf": SandwichCharLMForCausalLM(
            SandwichCharLMConfig(sublayer_order="ssf", attention_span=16, span_loss=0.1, **SIZES)
        ),
        "any": IOTSeq2SeqForConditionalGeneration(
            IOTSeq2SeqConfig(decoder_orders=["scf", "fsc", "csf"], **blocks, **SIZES)
        ),
    }
    for name, model in models.items():
        randomize(model).save_pretrained(tmp_path / name)
    worker = Path(__file__).with_name("parallel_worker.py")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    folders = [str(tmp_path / name) for name in models]
    done = subprocess.run([*launcher, str(worker), *folders], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    # two processes, two ways
    assert done.stdout.count("equal") == 4 * len(models)

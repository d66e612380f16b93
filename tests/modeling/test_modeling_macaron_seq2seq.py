import pytest
import torch
from common import tokens
from common_seq2seq_generation import Seq2SeqGenerationContract
from common_seq2seq_training import Seq2SeqTrainingContract
from transformers import AutoModel, AutoModelForSeq2SeqLM

from sublayers import (
    MacaronSeq2SeqConfig,
    MacaronSeq2SeqForConditionalGeneration,
    MacaronSeq2SeqModel,
    interleaved,
    macaron,
)

pytestmark = pytest.mark.slow


class TestMacaronSeq2Seq(Seq2SeqGenerationContract, Seq2SeqTrainingContract):
    is_sibling = True
    config_class = MacaronSeq2SeqConfig
    classes = {AutoModel: MacaronSeq2SeqModel, AutoModelForSeq2SeqLM: MacaronSeq2SeqForConditionalGeneration}


@pytest.mark.parametrize(
    ("sizes", "half_steps", "whole_steps"),
    [
        ({}, 60_936_192, 60_917_760),
        (
            {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 2048, "dropout": 0.3},
            209_952_768,
            209_915_904,
        ),
    ],
    ids=["base", "big"],
)
def test_has_the_parameters_of_the_papers_models(sizes, half_steps, whole_steps):
    config = MacaronSeq2SeqConfig(**sizes)
    plain = MacaronSeq2SeqConfig(
        **sizes | {"intermediate_size": 2 * config.intermediate_size},
        encoder_sublayer_order=interleaved(6),
        decoder_sublayer_order=interleaved(6, decoder=True),
        feed_forward_scale=1.0,
    )
    with torch.device("meta"):
        assert MacaronSeq2SeqForConditionalGeneration(config).num_parameters() == half_steps
        assert MacaronSeq2SeqForConditionalGeneration(plain).num_parameters() == whole_steps


def test_defaults_are_the_base_model_of_the_paper():
    config = MacaronSeq2SeqConfig()
    assert config.encoder_sublayer_order == macaron(6)
    assert config.decoder_sublayer_order == macaron(6, decoder=True)
    assert (config.num_encoder_sublayers, config.num_decoder_sublayers, config.num_hidden_layers) == (18, 24, 6)
    assert (config.hidden_size, config.intermediate_size, config.num_attention_heads) == (512, 1024, 8)
    assert (config.norm_position, config.final_norm, config.feed_forward_scale) == ("pre", True, 0.5)
    assert {config.dropout, config.attention_dropout, config.activation_dropout} == {0.1}


def test_drops_out_in_training_only():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "vocab_size": 61}
    model = MacaronSeq2SeqForConditionalGeneration(MacaronSeq2SeqConfig(**sizes))
    batch = {"input_ids": tokens(2, 9), "labels": tokens(2, 7)}
    losses = [model.train(training)(**batch).loss.item() for training in (True, True, False, False)]
    assert losses[0] != losses[1]
    assert losses[2] == losses[3]

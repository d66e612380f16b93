import pytest
import torch
from common import VOCAB, assert_same, gradients, randomize, tokens
from common_seq2seq_generation import BEAMS, Seq2SeqGenerationContract
from common_seq2seq_training import Seq2SeqTrainingContract
from families import TODAY
from transformers import AutoModel, AutoModelForSeq2SeqLM, BartConfig, BartForConditionalGeneration

from sublayers import (
    SandwichSeq2SeqConfig,
    SandwichSeq2SeqForConditionalGeneration,
    SandwichSeq2SeqModel,
    sandwich,
)
from sublayers.convert.seq2seq import from_bart

pytestmark = pytest.mark.slow


class TestSandwichSeq2Seq(Seq2SeqGenerationContract, Seq2SeqTrainingContract):
    config_class = SandwichSeq2SeqConfig
    todays_parts = TODAY
    classes = {AutoModel: SandwichSeq2SeqModel, AutoModelForSeq2SeqLM: SandwichSeq2SeqForConditionalGeneration}


def test_defaults_are_the_large_model_of_the_paper():
    config = SandwichSeq2SeqConfig()
    assert config.encoder_sublayer_order == sandwich(6, 3)
    assert config.decoder_sublayer_order == sandwich(6, 0, decoder=True)
    assert (config.hidden_size, config.intermediate_size, config.num_attention_heads) == (1024, 4096, 16)
    assert (config.norm_position, config.final_norm, config.dropout) == ("post", False, 0.3)
    assert (config.num_encoder_sublayers, config.num_decoder_sublayers, config.num_hidden_layers) == (12, 18, 6)
    decoder = {"decoder_sublayer_order": sandwich(6, 3, decoder=True)}
    with torch.device("meta"):
        sizes = [
            SandwichSeq2SeqForConditionalGeneration(SandwichSeq2SeqConfig(**orders)).num_parameters()
            for orders in ({}, decoder, {"encoder_sublayer_order": "(sf)6"})
        ]
    # an order costs nothing; this is fairseq's transformer_wmt_en_de_big without norms behind the stacks
    attention, feed_forward, norm = 4 * (1024**2 + 1024), 2 * 1024 * 4096 + 4096 + 1024, 2 * 1024
    assert sizes == [32768 * 1024 + 6 * (3 * attention + 2 * feed_forward + 5 * norm)] * 3


def test_interleaved_orders_equal_bart():
    sizes = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (("layers", 2), ("ffn_dim", 24))}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "d_model": 16, "max_position_embeddings": 64}
    ids = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}
    rest = {"vocab_size": VOCAB, "forced_eos_token_id": None, "dropout": 0.0, "scale_embedding": False}
    bart = randomize(BartForConditionalGeneration(BartConfig(**sizes | heads | ids | rest)))
    model, _ = from_bart(bart)
    # BART numbers padding, too, so that only sources padded on the right are the same
    mask = torch.ones(3, 9, dtype=torch.long)
    mask[2, -3:] = 0
    batch = {"input_ids": tokens(3, 9), "attention_mask": mask}
    given = batch | {"decoder_input_ids": tokens(3, 7)}
    torch.testing.assert_close(model(**given).logits, bart(**given).logits, atol=1e-5, rtol=1e-5)
    options = BEAMS | {"num_beams": 3, "num_return_sequences": 3}
    assert torch.equal(model.generate(**batch, **options), bart.generate(**batch, **options))
    labels = tokens(3, 7)
    labels[0, 5:] = -100
    for each in (model, bart):
        each(**batch, labels=labels).loss.backward()
    with torch.no_grad():
        for parameter in bart.parameters():
            # converted like weights, gradients lie where those of the model do
            parameter.copy_(parameter.grad)
    assert_same(gradients(model), dict(from_bart(bart)[0].named_parameters()), atol=1e-5, rtol=1e-4)

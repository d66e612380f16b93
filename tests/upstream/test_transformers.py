"""transformers' own tests of models, run on every family: `make test-transformers`."""

import unittest
from typing import Any

import pytest
import torch
from families import FAMILIES, small

from sublayers import AUTO_CLASSES, expand
from sublayers.configuration.configuration_sublayers import SET_BY_OTHERS

common = pytest.importorskip("transformers_tests.test_modeling_common")

# they set fields of other models, too, which ours refuse
SET_BY_OTHERS.update(
    ("rms_norm_eps", "post_norm_eps", "norm_eps", "norm_epsilon", "layer_norm_epsilon", "batch_norm_eps")
)
SET_BY_OTHERS.update(("first_k_dense_replace", "moe_layer_start_index", "mlp_only_layers", "num_dense_layers"))

BATCH, LENGTH = 3, 7
# sizes that the tests read off the configuration
ROTARY = {"position_embedding_type": "rotary", "max_position_embeddings": 128}
PAIR = {"encoder_sublayer_order": "sff", "decoder_sublayer_order": "scf"}
CHOICE = {"encoder_orders": ["sff", "fsf"], "decoder_orders": ["scf", "fsc"]}
OPTIONS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("sandwich_lm", "par_bert", "macaron_bert"), ROTARY),
    **dict.fromkeys(("macaron_seq2seq", "sandwich_seq2seq"), ROTARY | PAIR),
    "iot_seq2seq": ROTARY | CHOICE,
    "par_transformer_xl": {"adaptive_cutoffs": None},
}
# what a family does otherwise, by the beginnings of the tests' names
RELATIVE = {"test_model_rope": "positions are relative"}
EVERYWHERE = {
    "test_model_rope_scaling": "a text of more tokens than max_position_embeddings is refused",
    "test_eager_matches_batched_and_grouped": "the orders here have no experts; test_experts.py compares them",
}
EXCEPTIONS = {
    "iot_seq2seq": {
        "test_attention_outputs": "the outputs also tell which orders were chosen",
        "test_resize_tokens_embeddings": "training without labels is refused, since the choice would not learn",
        "test_retain_grad": "the states that are returned are gathered from the orders' own",
    },
    "par_transformer_xl": RELATIVE
    | {
        "test_model_get_set_embeddings": "the embedding is a module of bands",
        "test_resize": "the embedding is a module of bands",
    },
    "sandwich_char_lm": RELATIVE | {"test_attention_outputs": "weights are those of the whole span, memory included"},
}
# the tests go by tables of class names
for config_class, heads in AUTO_CLASSES.items():
    for auto_class, model_class in heads.items():
        auto_class._model_mapping._model_mapping[config_class.model_type] = model_class.__name__


class Inputs:
    """What the tests ask a family for: a configuration, and a batch."""

    is_training, batch_size, seq_length, num_choices = True, BATCH, LENGTH, 2

    def __init__(self, family: str):
        self.config_class = FAMILIES[family][0]
        self.options = FAMILIES[family][2] | OPTIONS.get(family, {})
        config = self.get_config()
        self.vocab_size, self.hidden_size = config.vocab_size, config.hidden_size
        self.num_attention_heads = config.num_attention_heads
        first, *_ = self.options.values() if "iot" in family else config.orders.values()
        order = expand(first[0] if isinstance(first, list) else first)
        # a state after each sublayer and one before all; weights of each attention
        self.expected_num_hidden_layers, self.num_hidden_layers = len(order) + 1, order.count("s")

    def get_config(self):
        return small(self.config_class, **self.options)

    def prepare_config_and_inputs_for_common(self):
        config = self.get_config()
        inputs = {"input_ids": torch.randint(4, config.vocab_size, (BATCH, LENGTH))}
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        if config.is_encoder_decoder:
            inputs |= {f"decoder_{name}": tensor.clone() for name, tensor in inputs.items()}
        return config, inputs


def make_test(family: str) -> type:
    config_class = FAMILIES[family][0]
    models = tuple(dict.fromkeys(AUTO_CLASSES[config_class].values()))

    def set_up(self):
        for test, reason in (EVERYWHERE | EXCEPTIONS.get(family, {})).items():
            if self._testMethodName.startswith(test):
                pytest.skip(reason)
        self.model_tester = Inputs(family)

    def prepare(self, inputs, model_class, return_labels=False):
        inputs = common.ModelTesterMixin._prepare_for_class(self, inputs, model_class, return_labels)
        if return_labels and model_class.__name__.endswith("ForPreTraining"):
            inputs |= {"labels": inputs["input_ids"], "next_sentence_label": torch.zeros(BATCH, dtype=torch.long)}
        return inputs

    own = {
        "all_model_classes": models,
        "setUp": set_up,
        "_prepare_for_class": prepare,
        "is_encoder_decoder": small(config_class).is_encoder_decoder,
    }
    bases = [common.ModelTesterMixin, unittest.TestCase]
    if any(model_class.can_generate() for model_class in models):
        bases.insert(1, common.GenerationTesterMixin)
    return type(f"Test_{family}", tuple(bases), own)


globals().update({test.__name__: test for test in map(make_test, FAMILIES)})

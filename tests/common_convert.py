"""Tiny sources of conversions, and what a report of a conversion has to say."""

import json
import re
from collections import Counter

import torch
import transformers
from common import randomize
from safetensors.torch import load_file

from sublayers.convert.llama import DECODERS
from sublayers.convert.sources import IRREGULAR
from sublayers.training.commands.convert import main


def follow(tensor, how):
    """Do to a source's tensor what a report says was done."""
    kind, *then = how.split(", ")
    if found := re.fullmatch(r"(rows|columns) (\d+) to (\d+)", kind):
        places = slice(int(found[2]), int(found[3]) + 1)
        tensor = tensor[places] if found[1] == "rows" else tensor[:, places]
    elif kind == "rows in reverse order":
        tensor = tensor.flip(0)
    else:
        assert kind == "whole"
    assert not then or then[0] in ("transposed", "in another shape")
    return tensor.T if "transposed" in then else tensor


def assert_complete(report, source, folder, new=()):
    """Every tensor of the source has its place or a reason, and every saved parameter is what the report says."""
    assert report["taken_over"].keys() | report["left_out"].keys() == source.keys()
    assert not report["taken_over"].keys() & report["left_out"].keys()
    found = load_file(folder / "model.safetensors")
    seen = set()
    for name, parameters in report["taken_over"].items():
        for parameter, how in parameters.items():
            seen.add(parameter)
            # what is tied is saved once
            if parameter in found:
                expected = follow(source[name], how)
                assert torch.equal(found[parameter], expected.reshape(found[parameter].shape)), (name, parameter)
    assert found.keys() - seen == set(new)


SPECIAL = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
SIZES = {"vocab_size": 61, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4}
SIZES |= {"num_hidden_layers": 2, "max_position_embeddings": 40, "num_key_value_heads": 4, **SPECIAL}
SEQ2SEQ = {"d_model": 16, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "encoder_layers": 2, "decoder_layers": 3}
SEQ2SEQ |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": 32, "vocab_size": 61}
MARIAN = SEQ2SEQ | {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "forced_eos_token_id": 2}
EXPERTS = SIZES | {"num_experts_per_tok": 2}
NEMOTRON = {"num_key_value_heads": 2, "head_dim": 6, "hybrid_override_pattern": "M-*M", "ssm_state_size": 5}
NEMOTRON |= {"mamba_num_heads": 4, "mamba_head_dim": 6, "n_groups": 2, "tie_word_embeddings": False}
BAMBA = {"num_key_value_heads": 2, "num_hidden_layers": 3, "attn_layer_indices": [1], "mamba_n_heads": 4}
BAMBA |= {"mamba_n_groups": 2, "mamba_d_state": 5, "rope_parameters": {"rope_theta": 50.0}}
GRANITE = {
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "mamba_n_heads": 4,
    "mamba_n_groups": 2,
    "mamba_d_state": 5,
}
GRANITE |= {"layer_types": ["linear_attention", "full_attention", "linear_attention"], "shared_intermediate_size": 20}
GRANITE |= {"num_local_experts": 4, "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "logits_scaling": 2.0}
GRANITE |= {"attention_multiplier": 0.2}
QWEN3_NEXT = {"num_experts": 4, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 12, "head_dim": 8}
QWEN3_NEXT |= {"layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2, "num_hidden_layers": 2}
QWEN3_NEXT |= {"linear_num_value_heads": 4, "linear_key_head_dim": 5, "linear_value_head_dim": 6}
# what is not in SIZES, by model_type
OTHERS = {
    **dict.fromkeys(["bart", "mbart", "pegasus"], SEQ2SEQ),
    "marian": MARIAN,
    "distilbert": {"vocab_size": 61, "dim": 16, "hidden_dim": 24, "n_heads": 4, "n_layers": 2} | {"pad_token_id": 1},
    "electra": SIZES | {"embedding_size": 16},
    "gemma": SIZES | {"head_dim": 8, "hidden_act": "gelu"},
    **dict.fromkeys(["gemma2", "gemma3_text"], SIZES | {"head_dim": 8, "query_pre_attn_scalar": 8}),
    "gpt2": {"vocab_size": 61, "n_positions": 40, "n_embd": 16, "n_layer": 2, "n_head": 4} | SPECIAL,
    # another pooling than its own, which has no counterpart here
    "eurobert": SIZES | {"classifier_pooling": "mean"},
    "lfm2": SIZES | {"block_multiple_of": 8},
    "mixtral": EXPERTS | {"num_local_experts": 4},
    "olmoe": EXPERTS | {"num_experts": 4},
    "qwen2_moe": EXPERTS | {"num_experts": 4, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 12},
    "qwen3_moe": EXPERTS | {"num_experts": 4, "moe_intermediate_size": 8},
    "qwen3_next": EXPERTS | QWEN3_NEXT,
    "bamba": SIZES | BAMBA,
    "granitemoehybrid": SIZES | GRANITE,
    "nemotron_h": SIZES | NEMOTRON,
    "stablelm": SIZES | {"partial_rotary_factor": 0.5},
    "modernbert": SIZES | {"local_attention": 8, "cls_token_id": 0, "sep_token_id": 2},
}


def make(name, **options):
    """A model of transformers of random weights, by the name of its class."""
    model_class = getattr(transformers, IRREGULAR.get(name, name))
    model_type = model_class.config_class.model_type
    model = randomize(model_class(model_class.config_class(**OTHERS.get(model_type, SIZES) | options)))
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            # gains are around 1
            parameter.sub_(int("norm" in parameter_name and model_type.startswith("gemma")))
    return model


def convert(folder, *flags):
    """Run the command on `source`, which gives `ours`, and return its report."""
    main([str(folder / "source"), str(folder / "ours"), "--report", str(folder / "report.json"), *flags])
    return json.loads((folder / "report.json").read_text())


def edit(path, **fields):
    """Change fields of a JSON file, or make one."""
    path.parent.mkdir(exist_ok=True)
    found = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(found | fields))


# models of transformers that can be converted: their classes, and options beside those of `make`
HEADS = ["Model", "ForMaskedLM", "ForMultipleChoice", "ForQuestionAnswering", "ForSequenceClassification"]
HEADS += ["ForTokenClassification"]
PAIR_HEADS = ["ForPreTraining", "ForNextSentencePrediction"]
ENCODERS = {
    "Roberta": {"type_vocab_size": 1},
    # another padding, and segments as BERT has them
    "XLMRoberta": {"pad_token_id": 3},
    "Camembert": {"type_vocab_size": 1, "tie_word_embeddings": False},
    "DistilBert": {},
    "DistilBert of its own": {"activation": "relu", "sinusoidal_pos_embds": True, "tie_word_embeddings": False},
    "Electra": {},
    "JinaEmbeddingsV3": {"type_vocab_size": 1},
    # farther than the farthest distance
    "MPNet": {"max_position_embeddings": 200},
}
ROTARY = {
    "NomicBert": {"head_dim": 6, "hidden_act": "silu"},
    "Gte": {"type_vocab_size": 2},
    # as its English models have it
    "Gte without segments": {"type_vocab_size": 0, "hidden_act": "gelu"},
}
BIASED = {"norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_bias": True}
BIASED |= {"hidden_activation": "silu", "classifier_activation": "silu"}
# longer than what blocks of local attention are made for
LONG = {"num_hidden_layers": 4, "num_key_value_heads": None, "max_position_embeddings": 200}
GROUPED = {"num_key_value_heads": 2, "tie_word_embeddings": False}
DECODER_OPTIONS = {
    "Llama": {},
    "Llama with biases": {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1},
    "Mistral": {"head_dim": 12, "sliding_window": None},
    "Mistral of windows": {"sliding_window": 5},
    "Qwen2": {},
    "Qwen2 of windows": {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    "Qwen3": {"head_dim": 12},
    # what it calls gelu is the approximation
    "Gemma": {"tie_word_embeddings": True, "num_key_value_heads": 1},
    "Gemma2": {"sliding_window": 5, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    # its layers are local, but for the last
    "Gemma3Text": {"sliding_window": 5, "sliding_window_pattern": 2, "attention_bias": True}
    | {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 50.0}}},
    "StableLm": {"use_qkv_bias": True},
    "Lfm2": {"layer_types": ["conv", "full_attention"], "conv_L_cache": 4},
    "Lfm2 of one kind": {"layer_types": ["full_attention"] * 2, "block_auto_adjust_ff_dim": False},
    # as every layer has, and as some have
    "Mixtral": {"router_jitter_noise": 0.1},
    "Mixtral of windows": {"sliding_window": 5},
    "Olmoe": {"num_experts": 5},
    "Olmoe with biases": {"norm_topk_prob": True, "attention_bias": True, "num_key_value_heads": 1},
    "Qwen2Moe": {"decoder_sparse_step": 2, "num_hidden_layers": 3},
    "Qwen3Moe": {"norm_topk_prob": True, "mlp_only_layers": [1], "num_hidden_layers": 3, "head_dim": 6},
    "Qwen3Moe of windows": {"use_sliding_window": True, "sliding_window": 6},
    # as transformers 4 wrote it
    "Llama linear": {"rope_scaling": {"type": "linear", "factor": 2.0}},
    # as if it had been trained with fewer tokens than there are here
    "Llama yarn": {"rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8}},
    "Llama llama3": {
        "rope_scaling": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        | {"original_max_position_embeddings": 8, "rope_theta": 100.0}
    },
    "Llama dynamic": {"rope_scaling": {"rope_type": "dynamic", "factor": 3.0}, "max_position_embeddings": 8},
}
CAUSAL = {
    f"{name} ForCausalLM": (f"{name.split()[0]}ForCausalLM", GROUPED | options)
    for name, options in DECODER_OPTIONS.items()
}
BIDIRECTIONAL = ["Llama with biases", "Mistral", "Mistral of windows", "Qwen2 of windows", "Qwen3", "Gemma", "Gemma2"]
BOTH_SIDES = {name: GROUPED | DECODER_OPTIONS[name] for name in BIDIRECTIONAL} | {"GPT2": {}}
EMBEDDING_GEMMA = GROUPED | DECODER_OPTIONS["Gemma3Text"] | {"use_bidirectional_attention": True, "sliding_window": 9}
BOTH_SIDES["Llama without labels' bias"] = GROUPED | {"token_classification_bias": False}
LABELS = {"id2label": {0: "a", 1: "b", 2: "c"}, "label2id": {"a": 0, "b": 1, "c": 2}}
LABELS |= {"problem_type": "multi_label_classification"}
SOURCES = {
    **{f"Bert {head}": (f"Bert{head}", {}) for head in [*HEADS, *PAIR_HEADS]},
    **{
        f"{name} {head}": (name.split()[0] + head, more)
        for name, more in ENCODERS.items()
        for head in HEADS
        if (name, head) != ("JinaEmbeddingsV3", "ForMultipleChoice")
    },
    **{
        f"{name} {head}": (name.split()[0] + head, more)
        for name, more in ROTARY.items()
        for head in ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
    },
    # what no head reads is no reason to refuse
    "Roberta of relu Model": ("RobertaModel", {"hidden_act": "relu"}),
    "Electra of relu": ("ElectraForSequenceClassification", {"hidden_act": "relu", "summary_type": "mean"}),
    "Electra of tanh ForMultipleChoice": ("ElectraForMultipleChoice", {"summary_activation": "tanh"}),
    **{
        f"ModernBert{kind} {head}": (f"ModernBert{head}", options | LONG)
        for kind, options in (("", {}), (" with biases", BIASED))
        for head in HEADS
    },
    "ModernBert of means": ("ModernBertForSequenceClassification", {"classifier_pooling": "mean"} | LONG),
    **CAUSAL,
    "GPT2 LMHeadModel": ("GPT2LMHeadModel", {}),
    "GPT2 untied": ("GPT2LMHeadModel", {"tie_word_embeddings": False}),
    **{
        f"{prefix} ForSequenceClassification": (f"{prefix}ForSequenceClassification", GROUPED | LABELS)
        for prefix in [*DECODERS.values(), "GPT2"]
        # one has no such head, and the rows of the other one lie in another order
        if prefix not in ("Olmoe", "Qwen3Next")
    },
    **{
        f"{name} of both sides {head}": (name.split()[0] + head, options | {"is_causal": False, "num_labels": 3})
        for name, options in BOTH_SIDES.items()
        for head in ("Model", "ForTokenClassification", "ForQuestionAnswering")
        if not (name.startswith("Gemma") and head == "ForQuestionAnswering")
    },
    "Gemma3Text of both sides Model": ("Gemma3TextModel", EMBEDDING_GEMMA),
    "EuroBert Model": ("EuroBertModel", GROUPED | {"head_dim": 12}),
    **{
        f"EuroBert of {pooling} ForSequenceClassification": (
            "EuroBertForSequenceClassification",
            GROUPED | LABELS | {"classifier_pooling": pooling},
        )
        for pooling in ("bos", "mean")
    },
    "EuroBert ForTokenClassification": ("EuroBertForTokenClassification", GROUPED | {"attention_bias": True}),
    "Bart": ("BartForConditionalGeneration", {}),
    "Bart untied": ("BartForConditionalGeneration", {"tie_word_embeddings": False, "scale_embedding": True}),
    "Marian": ("MarianMTModel", {"activation_function": "swish", "scale_embedding": True}),
    "Marian of two vocabularies": (
        "MarianMTModel",
        {"share_encoder_decoder_embeddings": False, "vocab_size": 67, "decoder_vocab_size": 61},
    ),
    # its targets begin with their language
    "MBart": ("MBartForConditionalGeneration", {"scale_embedding": True, "decoder_start_token_id": 60}),
    "MBart untied": ("MBartForConditionalGeneration", {"tie_word_embeddings": False, "decoder_start_token_id": 60}),
    "Pegasus": ("PegasusForConditionalGeneration", {"activation_function": "relu"}),
    "Pegasus untied": ("PegasusForConditionalGeneration", {"tie_word_embeddings": False}),
}


def in_turn(cases, kind):
    """Sort cases: the first of each kind, then the second ones, and so on, so that few of them stand for all."""
    seen = Counter()
    numbered = []
    for case in cases:
        numbered.append((seen[kind(case)], case))
        seen[kind(case)] += 1
    return [case for _, case in sorted(numbered, key=lambda pair: pair[0])]

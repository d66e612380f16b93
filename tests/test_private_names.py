"""What we use of transformers that it does not export, and of torch and others, and what is lost when that goes."""

import ast
import importlib.util
import inspect
import re
from collections import defaultdict
from pathlib import Path
from pkgutil import resolve_name

import pytest
import transformers

ROOT = Path(__file__).resolve().parents[1]
MODEL, GENERATION = "transformers.modeling_utils:PreTrainedModel", "transformers.generation.utils:GenerationMixin"
TRAINER, PIPELINE = "transformers.trainer:Trainer", "transformers.pipelines.base:Pipeline"
# where names are defined, or an object with them; the names; what is lost without them
LOST = [
    (MODEL, "_supports_sdpa _supports_flash_attn _supports_flex_attn _sdpa_can_dispatch", "every attention but eager"),
    (MODEL, "_supports_attention_backend", "serving by vLLM, and continuous batching"),
    (MODEL, "_can_compile_fullgraph", "compiled steps with static caches"),
    (MODEL, "_can_record_outputs", "hidden states and attentions among outputs"),
    (MODEL, "_no_split_modules", "device_map and FSDP, where a sublayer stays whole"),
    (MODEL, "_init_weights", "initial weights as the papers have them"),
    (MODEL, "_tied_weights_keys _keys_to_ignore_on_save", "tied weights in saved folders and resumed runs"),
    (MODEL, "_get_resized_embeddings", "resize_token_embeddings of encoder-decoders and adaptive embeddings"),
    ("transformers.distributed.mixin:DistributedMixin", "_tp_plan", "tensor parallelism of heads"),
    ("transformers.distributed.mixin:DistributedMixin", "_ep_plan", "expert parallelism of encoder-decoders"),
    (MODEL, "_can_set_experts_implementation", "the choice of products of experts once there is a model"),
    ("transformers.configuration_utils:PreTrainedConfig", "_experts_implementation", "the same"),
    ("transformers.integrations.moe", "batched_mm_experts_forward", "exported graphs with experts"),
    (
        "transformers.models.qwen3_moe.modeling_qwen3_moe",
        "Qwen3MoeExperts Qwen3MoeMLP Qwen3MoeTopKRouter load_balancing_loss_func",
        "experts",
    ),
    ("transformers.initialization", "_is_hf_initialized", "loaded rows of padding, which would be set to zero"),
    ("transformers.integrations.peft:PeftAdapterMixin", "_hf_peft_config_loaded", "the refusal to optimize adapters"),
    ("transformers.configuration_utils:PreTrainedConfig", "_attn_implementation", "the choice of attention"),
    (GENERATION, "_expand_inputs_for_generation _reorder_cache", "beams that share the states of their source"),
    (GENERATION, "_prepare_generation_config", "states of IOT's encoder among what generate returns"),
    (GENERATION, "_supports_default_dynamic_cache", "ensembles, whose members make their own caches"),
    ("transformers.generation.configuration_utils", "_from_model_config", "seq2seq's flags of generation"),
    (TRAINER, "_total_loss_scalar _tr_loss _globalstep_last_logged", "the losses that resumed runs report"),
    (TRAINER, "_save_rng_state _load_rng_state", "random numbers and streams of resumed runs"),
    (TRAINER, "_save_checkpoint _load_from_checkpoint _save _internal_call", "checkpoints that resume and are whole"),
    (TRAINER, "_push_from_checkpoint", "folders with code on the Hub while a run trains"),
    (TRAINER, "_run_epoch _determine_best_metric", "sentences for flags that the Trainer cannot use"),
    (TRAINER, "_get_train_sampler _get_eval_sampler _train_batch_size", "batches of streams, and evaluation in order"),
    (TRAINER, "_get_dataloader", "batches of held-out data for the architecture of a super-network"),
    (TRAINER, "_prepare_inputs", "inputs on the model's device in losses of our own"),
    (PIPELINE, "_forward _forward_params _sanitize_parameters", "the pipelines of transformers 4"),
    (PIPELINE, "_load_tokenizer _load_processor _load_image_processor _load_feature_extractor", "the same"),
    ("transformers.models.mbart.tokenization_mbart", "_build_translation_inputs", "languages in pipelines"),
    ("transformers.hf_argparser", "_argument_group_name", "groups of flags in --help"),
    ("transformers", "__version__", "the refusal of versions that were not tested"),
    ("transformers.activations", "ACT2FN", "activations by name"),
    ("transformers.modeling_utils", "initialization", "initial weights that leave loaded ones as they are"),
    ("transformers.initialization", "no_init_weights", "models whose weights come at once, without waiting"),
    ("transformers.cache_utils", "DynamicSlidingWindowLayer", "the memory of language models, as a cache"),
    ("transformers.cache_utils", "LinearAttentionLayer LinearAttentionAndFullAttentionLayer", "states in caches"),
    ("transformers.cache_utils", "LinearAttentionCacheLayerMixin", "the refusal of caches without states"),
    ("transformers.models.mamba2.modeling_mamba2", "mamba2_chunk_scan", "kernels of Mamba-2"),
    ("transformers.models.qwen3_next.modeling_qwen3_next", "torch_chunk_gated_delta_rule", "those of the delta rule"),
    (
        "transformers.utils.import_utils",
        "is_flash_linear_attention_available is_mamba_2_ssm_available",
        "the choice of kernels",
    ),
    ("transformers.integrations.sdpa_attention", "repeat_kv", "grouped keys in attention of our own"),
    ("transformers.masking_utils", "create_bidirectional_mask create_causal_mask", "masks of every attention"),
    (
        "transformers.masking_utils",
        "create_bidirectional_sliding_window_mask create_sliding_window_causal_mask",
        "masks of local attention",
    ),
    ("transformers.masking_utils", "create_masks_for_generate", "static caches of encoder-decoders"),
    ("transformers.modeling_outputs", "BaseModelOutput BaseModelOutputWithPast", "outputs of bodies"),
    ("transformers.modeling_outputs", "BaseModelOutputWithPastAndCrossAttentions Seq2SeqModelOutput", "the same"),
    ("transformers.modeling_outputs", "BaseModelOutputWithPooling ModelOutput", "the same"),
    ("transformers.modeling_outputs", "CausalLMOutputWithPast MaskedLMOutput Seq2SeqLMOutput", "outputs of heads"),
    ("transformers.modeling_outputs", "Seq2SeqSequenceClassifierOutput", "the same"),
    ("transformers.modeling_outputs", "SequenceClassifierOutput SequenceClassifierOutputWithPast", "the same"),
    ("transformers.modeling_outputs", "TokenClassifierOutput MultipleChoiceModelOutput", "the same"),
    ("transformers.modeling_outputs", "NextSentencePredictorOutput QuestionAnsweringModelOutput", "the same"),
    ("transformers.models.bert.modeling_bert", "BertForPreTrainingOutput", "outputs of pre-training"),
    ("transformers.modeling_utils", "ALL_ATTENTION_FUNCTIONS", "the choice of attention"),
    ("transformers.models.phi.modeling_phi", "PhiRotaryEmbedding", "rotary positions, scaled in all ways"),
    (
        "transformers.models.auto.modeling_auto",
        "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
        "label smoothing of language models",
    ),
    ("transformers.pipelines", "PIPELINE_REGISTRY REMOVED_TASKS", "the pipelines of transformers 4"),
    ("transformers.pipelines", "SUPPORTED_TASKS", "sublayers list by task"),
    ("transformers.pipelines.base", "ChunkPipeline", "the pipelines of transformers 4"),
    ("transformers.pipelines.base", "load_assistant_model", "their assisted decoding"),
    ("transformers.trainer", "FSDP_MODEL_NAME TRAINER_STATE_NAME", "which checkpoint is whole"),
    ("transformers.trainer_utils", "PREFIX_CHECKPOINT_DIR", "the same"),
    ("transformers.trainer_utils", "TrainOutput has_length", "runs that are over, or have no length"),
    ("transformers.utils", "SAFE_WEIGHTS_INDEX_NAME SAFE_WEIGHTS_NAME", "averages of checkpoints"),
    ("transformers.utils", "ModelOutput", "the benchmark of graphs inside of sentence-transformers"),
    (
        "transformers.utils.generic",
        "can_return_tuple merge_with_config_defaults",
        "return_dict and defaults of outputs",
    ),
    ("transformers.utils.deprecation", "deprecate_kwarg", "the old name of the cache"),
    ("transformers.utils.import_utils", "is_tracing", "export and compilation, where values cannot be looked at"),
    ("transformers.utils.output_capturing", "OutputRecorder capture_outputs", "hidden states among outputs"),
    ("torch.nn:Module", "_modules _forward_hooks _forward_pre_hooks", "the refusal to skip hooks, old checkpoints"),
    ("torch.nn:Module", "_parameters", "graphs that see weights change, at each call"),
    ("torch.nn:Module", "_compiled_call_impl", "the refusal to optimize compiled models"),
    ("torch:Tensor", "_version", "prepacked weights that follow their parameter"),
    ("torch:ops.mkldnn", "_linear_pointwise _reorder_linear_weight", "fast products in oneDNN"),
    ("torch.utils._python_dispatch", "_disable_current_modes", "their measurement while a model is loaded"),
    ("accelerate.hooks", "_hf_hook", "the refusal to optimize dispatched models"),
]
LISTED = {name: (where, lost) for where, names, lost in LOST for name in names.split()}
PRIVATE = re.compile(r"\b_[a-zA-Z]\w*")
# documented for named tuples
PUBLIC = {"_asdict", "_fields", "_replace"}
# what is called like something of transformers
OURS = {"_run", "_tokenize"}
LIBRARY = ("", "distributed", "generation", "integrations", "pipelines", "utils")


def read(folder, pattern):
    """The modules of a folder, each as the list of its syntax nodes."""
    paths = sorted((ROOT / folder).glob(pattern))
    return [(path.relative_to(ROOT), [*ast.walk(ast.parse(path.read_text()))]) for path in paths]


def private_names(node):
    """The private names that a piece of code uses or replaces, as attributes, arguments, imports or keys."""
    words = []
    match node:
        case ast.Attribute(attr=name) | ast.arg(arg=name):
            words = [name]
        case ast.ClassDef(body=body):
            assigned = [
                part.targets[0] if isinstance(part, ast.Assign) else getattr(part, "target", None) for part in body
            ]
            words = [getattr(part, "name", None) for part in body] + [getattr(name, "id", None) for name in assigned]
        case ast.Call(func=ast.Name(id="getattr" | "hasattr" | "setattr"), args=[_, ast.Constant(value=name), *_]):
            words = [name]
        case ast.Dict(keys=parts) | ast.Set(elts=parts):
            words = [part.value for part in parts if isinstance(part, ast.Constant)]
        case ast.ImportFrom(names=names):
            words = [alias.name for alias in names]
    return {word for word in words if isinstance(word, str) and PRIVATE.fullmatch(word)} - PUBLIC


def given_names(node):
    """The name that a piece of code gives to a function, a variable or an attribute."""
    match node:
        case (
            ast.FunctionDef(name=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store())
        ):
            return {name}
    return set()


def found():
    """What our source uses and transformers does not export, and where."""
    library = Path(importlib.util.find_spec("transformers").origin).parent
    text = "".join(path.read_text() for folder in LIBRARY for path in (library / folder).glob("*.py"))
    theirs, exported = {*PRIVATE.findall(text)} - OURS, {*transformers.__all__}
    sources = [each for folder in ("configuration", "modeling", "training") for each in read(folder, "**/*.py")]
    sources += [each for folder in ("", "hub", "convert", "tasks") for each in read(f"src/sublayers/{folder}", "*.py")]
    ours = OURS.union(*(given_names(node) for _, nodes in sources for node in nodes))
    places = defaultdict(set)
    for path, nodes in sources:
        for node in nodes:
            # keys may be endings of names
            unknown = set() if isinstance(node, ast.Dict | ast.Set) else private_names(node) - ours
            names = (private_names(node) & theirs) | unknown
            if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "transformers":
                names |= {alias.name for alias in node.names} - exported
            for name in names:
                places[name].add(f"{path}:{getattr(node, 'lineno', 0)}")
    return places


@pytest.mark.parametrize("name", LISTED)
def test_what_we_use_is_there(name):
    where, lost = LISTED[name]
    owner = resolve_name(where)
    is_there = hasattr(owner, name) or re.search(rf"\b{name}\b", inspect.getsource(owner))
    assert is_there, f"{where} has no {name}; without it we lose {lost}"


def test_every_private_name_that_we_use_is_listed_and_no_other():
    places = found()
    unlisted = {name: sorted(where) for name, where in places.items() if name not in LISTED}
    assert unlisted == {}, "use what transformers exports, or add a row to LOST"
    assert LISTED.keys() - places.keys() == set(), "nobody uses these any more"

"""What the models of all families share."""

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedModel, initialization as init
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.output_capturing import OutputRecorder

from .embeddings import SinusoidalPositions, sinusoid_table
from .graph_sessions import Graphs, read_graphs
from .linear import run_in_onednn
from .mixers_attention import SelfAttention, check_caps
from .mixers_experts import balanced
from .mixers_mixer import Drawn
from .norm import UnitOffsetRMSNorm
from .sublayer import Sublayer

# the arguments of saving that are of publishing
PUBLISHING = {"repo_id", "commit_message", "commit_description", "private", "token", "revision", "create_pr", "tags"}
# what every forward passes on, to attention kernels, to continuous batching's cache, and to what records outputs
PASSED_ON = {"is_causal", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx"}
PASSED_ON |= {"read_index", "write_index", "block_table", "logits_indices", "logits_processor_args"}
PASSED_ON |= {"output_hidden_states", "output_attentions", "return_dict", "num_items_in_batch"}
# what `balanced` reads
PASSED_ON |= {"output_router_logits", "routing"}
# what graphs can stand for
METHODS = {"forward", "forward_first_token", "forward_last_token"}
# transformers adds this by the configuration, in encoders too
PASSED_ON |= {"use_cache"}


def refuse_unknown_keywords(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Make the forward of a model raise a TypeError for a keyword that neither it nor anything that it calls reads.

    What is swallowed changes what a model computes without a word: transformers 5.24 renamed `past_key_values`, and
    whoever passed all keywords on computed each token without its past. The old name is taken as transformers takes it.
    """
    known = {*inspect.signature(forward).parameters, *PASSED_ON}
    if "cache" in known:
        known.add("past_key_values")
        forward = deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")(forward)

    @wraps(forward)
    def checked(self, *args, **kwargs):
        # what a subclass hands to its parent is its own affair
        if getattr(type(self).forward, "__wrapped__", None) is checked:
            for name in kwargs:
                if name not in known and name not in self.loss_keywords:
                    raise TypeError(f"{type(self).__name__}.forward() got an unexpected keyword argument {name!r}")
        return forward(self, *args, **kwargs)

    return checked


def running_in_graphs(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let a model's graphs give the outputs of one of its methods, where it has any that can."""

    @wraps(method)
    def routed(self, *args, **kwargs):
        # what a subclass hands to its parent is its own affair
        if self.graphs and not args and getattr(type(self), method.__name__) is routed:
            outputs = self.graphs.run(self, method.__name__, kwargs)
            if outputs is not None:
                return outputs
        return method(self, *args, **kwargs)

    return routed


def hidden_state_recorder(number: str) -> OutputRecorder:
    """Record a hidden state for each sublayer; `number` is the configuration's name for how many there are."""
    # negative numbers of hidden states count back from here
    return OutputRecorder(Sublayer, num_hidden_layers_key=number)


class SublayersPreTrainedModel(PreTrainedModel):
    """Capabilities and initialisation of every model built from sublayers."""

    base_model_prefix = "model"
    # what a head's loss takes beside `labels`; in the signature, the Trainer would wait for it in every batch
    loss_keywords: tuple[str, ...] = ()
    # of another runtime, which `sublayers.optimize` gives a model
    graphs: Graphs | None = None
    supports_gradient_checkpointing = True
    _no_split_modules = ["Sublayer"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    _can_record_outputs = {
        "hidden_states": hidden_state_recorder("num_sublayers"),
        "attentions": OutputRecorder(SelfAttention, index=1),
    }

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        for name in METHODS & vars(cls).keys():
            method = refuse_unknown_keywords(balanced(cls.forward)) if name == "forward" else getattr(cls, name)
            setattr(cls, name, running_in_graphs(method))

    def __init__(self, config, *inputs, **kwargs):
        # overrides given to from_pretrained are set on the config without a check
        config.validate()
        super().__init__(config, *inputs, **kwargs)

    def post_init(self):
        """Initialise and tie weights, and choose how linear maps run."""
        super().post_init()
        run_in_onednn(self)
        # the Trainer, when it resumes, takes for missing what is saved under its other name
        self._keys_to_ignore_on_save = set(self.all_tied_weights_keys)

    def _sdpa_can_dispatch(self, is_init_check=False):
        # where this raises and nobody asks for sdpa, transformers takes eager attention
        check_caps(self.config, "sdpa")
        return super()._sdpa_can_dispatch(is_init_check)

    def is_recorded(self, **inputs) -> bool:
        """Say whether a caller asks for hidden states or attention weights, which need every position as it is."""
        asked = (inputs.get(name, getattr(self.config, name)) for name in ("output_hidden_states", "output_attentions"))
        # 0 is the number of a hidden state
        return any(value is not None and value is not False for value in asked)

    @classmethod
    def _can_set_experts_implementation(cls):
        # transformers looks for the experts' decorator in the file of the class
        return True

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *args, **kwargs):
        """Load as transformers does, and open the graphs of another runtime that the folder has."""
        loaded = super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        if model.config.graphs:
            model.graphs = read_graphs(model, pretrained_model_name_or_path, kwargs.get("revision"))
        return loaded

    def save_pretrained(
        self, save_directory, is_main_process=True, *args, self_contained=False, push_to_hub=False, **kwargs
    ):
        """Save as transformers does; with `self_contained`, so that the folder can be used without this package.

        Such a folder also has the code of the family, its licence, a card and, if the model was loaded from where there
        is one, the tokenizer. A model that was once saved like this, loaded from such a folder, registered for an Auto
        class or given graphs of another runtime is always saved like this; the graphs are saved, too.
        """
        package = self.config.package()
        publishing = {name: kwargs.pop(name) for name in PUBLISHING & kwargs.keys()} if push_to_hub else {}
        graphs = self.graphs if self.graphs and self.graphs.is_current(self) else None
        self.config.graphs = graphs.description() if graphs else {}
        if package and (self_contained or graphs):
            self.config.auto_map = package.auto_map(self.config)
        super().save_pretrained(save_directory, is_main_process, *args, **kwargs)
        if graphs and is_main_process:
            graphs.copy(Path(save_directory))
        # a model with adapters saves the adapters alone, which need no card of this package
        if package and self.config.auto_map and is_main_process and not self._hf_peft_config_loaded:
            package.copy_tokenizers(self, Path(save_directory))
            package.write_card(save_directory)
        if push_to_hub:
            self.push_to_hub(publishing.pop("repo_id", Path(save_directory).name), **publishing)

    def push_to_hub(self, repo_id, **kwargs):  # type: ignore[override]
        """Upload the model's self-contained folder as one commit; arguments are those of transformers."""
        package = self.config.package()
        return package.push(self, repo_id, **kwargs) if package else super().push_to_hub(repo_id, **kwargs)

    def _init_weights(self, module):
        super()._init_weights(module)
        if isinstance(module, Drawn):
            module.draw_weights(self.config)
        elif isinstance(module, UnitOffsetRMSNorm):
            init.zeros_(module.weight)
        elif isinstance(module, SinusoidalPositions):
            # loading builds models on the meta device, where the table has no values
            init.copy_(module.table, sinusoid_table(module.num_positions, module.hidden_size))
        elif isinstance(module, nn.Embedding) and self.config.scale_embedding:
            # multiplied by sqrt(hidden) it is as large as the sinusoids
            init.normal_(module.weight, std=self.config.hidden_size**-0.5)
            if module.padding_idx is not None and not getattr(module.weight, "_is_hf_initialized", False):
                init.zeros_(module.weight[module.padding_idx])
        elif isinstance(module, nn.Linear) and self.config.norm_position == "pre" and hasattr(module, "num_sublayers"):
            # so that the sum of all sublayers starts as large as one of them (GPT-2, section 2.3)
            init.normal_(module.weight, std=self.config.initializer_range * module.num_sublayers**-0.5)  # type: ignore

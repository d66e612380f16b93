"""What the configurations of all families share: fields, derived counts and checks."""

import difflib
import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import field, fields
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from transformers import PreTrainedConfig

from sublayers.configuration.alphabet import ALPHABET
from sublayers.configuration.field_values import (
    LEAST_EPS,
    FieldsOfLetters,
    check_value,
    number,
    strict,
    unneeded_fields,
)
from sublayers.configuration.letters.letter import Sizes, remedy
from sublayers.configuration.order import Order, compact
from sublayers.configuration.parallel_plans import expert_parallel_plan, tensor_parallel_plan
from sublayers.configuration.parts import check_parts

PositionEmbeddingType = Literal["learned", "sinusoidal", "rotary", "none"]
# before the mixer, after the sum, or before the mixer and after it, inside the residual branch (Gemma 2)
NormPosition = Literal["pre", "post", "both"]
ProblemType = Literal["regression", "single_label_classification", "multi_label_classification"]
# what transformers makes fields of
CONSUMED = {
    "attn_implementation",
    "experts_implementation",
    "torch_dtype",
    "rope_theta",
    "rope_scaling",
    "partial_rotary_factor",
}
# what transformers and sentence-transformers set beside fields
SET_BY_OTHERS = {"custom_pipelines", "distributed_config", "fusion_config", "gradient_checkpointing", "is_causal"}
SET_BY_OTHERS |= {"quantization_config", "sentence_transformers", "sbert_ce_default_activation_function"}


@strict
class SublayersConfig(PreTrainedConfig, FieldsOfLetters):
    """Sizes, sublayers and residual stream of a model whose sublayers run in any order.

    Orders are stored in their canonical form, however they are written, also when they are set later.

    Raises:
        ValueError: an order that cannot be read or has a letter that the family lacks, heads that do not divide the
            width, a number out of range, an unknown activation, an empty list of end tokens, a value of another type,
            or a name that is no field, also when it is set later.
    """

    # what the Trainer does not take for predictions
    keys_to_ignore_at_inference: ClassVar[list[str]] = [
        *("cache", "memory", "aux_loss", "router_logits", "encoder_router_logits", "decoder_router_logits")
    ]
    # the fields that hold an order, or several in a list, and the kind of stack of each; the last stack has the cache
    order_fields: ClassVar[dict[str, str]] = {"sublayer_order": "single"}

    vocab_size: int = number(28996, least=1)
    hidden_size: int = number(1024, least=1)
    # of feed-forward sublayers; a list has one for each
    intermediate_size: int | list[int] = number(4096, least=1)
    num_attention_heads: int = number(8, least=1)
    max_position_embeddings: int = number(3072, least=1)
    hidden_act: str = "relu"
    # the activation of feed-forward sublayers right before self-attention; None: hidden_act
    pre_attention_act: str | None = None
    # the heads of keys and values, each shared by several queries; None: num_attention_heads
    num_key_value_heads: int | None = number(None, least=1)
    # the width of a head; None: hidden_size / num_attention_heads
    head_dim: int | None = number(None, least=1)
    # RMS norms of queries and keys: of each head or, as OLMo has them, of all heads together
    qk_norm: bool = False
    qk_norm_per_head: bool = True
    # what attention mixes is multiplied by the sigmoid of a map of the states that asked
    attention_output_gate: bool = False
    # attention's scores are kept below this by a tanh, which kernels such as sdpa lack
    attn_logit_softcapping: float | int | None = number(None, least=1)
    # beside positions: attention adds to its keys a learned vector for each distance, of which this is the farthest;
    # None: no vectors
    relative_key_distance: int | None = number(None, least=1)
    # a feed-forward sublayer computes act(gate(x)) * fc1(x) instead of act(fc1(x))
    gated_feed_forward: bool = False
    # whether the maps to queries, keys and values have a bias
    attention_bias: bool = True
    attention_output_bias: bool = True
    # whether the maps of feed-forward sublayers have a bias
    mlp_bias: bool = True
    # the dropout of what sublayers add, and of embeddings
    dropout: float | int = number(0.1, most=1)
    # the dropout of embeddings alone; None: dropout
    embedding_dropout: float | int | None = number(None, most=1)
    # the dropout of what all sublayers but feed-forward ones add; None: dropout
    attention_output_dropout: float | int | None = number(None, most=1)
    # the dropout of attention's weights
    attention_dropout: float | int = number(0.1, most=1)
    # the dropout inside feed-forward sublayers
    activation_dropout: float | int = number(0.1, most=1)
    norm_position: NormPosition = "pre"
    # whether the first sublayer has one, where norms come first
    first_norm: bool = True
    norm_type: Literal["layer", "rms"] = "layer"
    # without gain and bias, norms have no parameters
    norm_affine: bool = True
    # RMS norms never have one
    norm_bias: bool = True
    # whether the gain of an RMS norm is 1 + weight
    norm_unit_offset: bool = False
    final_norm: bool = False
    # what the residual of a feed-forward sublayer is multiplied by: 0.5 are Macaron's half steps
    feed_forward_scale: float | int = number(1.0)
    position_embedding_type: PositionEmbeddingType = "sinusoidal"
    # the parameters of rotary positions, as in transformers; None for other positions
    rope_parameters: dict[str, Any] | None = None
    # the base of the rotary positions of sublayers `w`, which are then not scaled; None: rope_parameters
    local_rope_theta: float | int | None = number(None, least=1)
    # the number of the first position of a table: fairseq's sinusoids start at its padding index + 1
    position_offset: int = number(0)
    scale_embedding: bool = True
    layer_norm_eps: float = number(1e-5, least=LEAST_EPS)
    initializer_range: float = number(0.02, most=1)
    tie_word_embeddings: bool = True
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    # the names of these sublayers in the model that they were taken from, as `sublayers prune` and `distill` leave them
    kept_sublayers: list[str] | None = None
    # where a folder has its code; trl reads it unguarded
    auto_map: dict[str, Any] = field(default_factory=dict)
    # graphs of the model in other runtimes, as `modeling.graph_sessions` reads them
    graphs: dict[str, Any] = field(default_factory=dict)
    # the base class names their types in quotes, which are not checked
    architectures: list[str] | None = None
    output_hidden_states: bool | None = False
    return_dict: bool | None = True
    is_encoder_decoder: bool = False
    id2label: dict[int, str] | dict[str, str] | None = None
    label2id: dict[str, int] | dict[str, str] | None = None
    problem_type: ProblemType | None = None

    def __post_init__(self, **kwargs):
        for name in kwargs.keys() - CONSUMED:
            self.check_name(name)
        super().__post_init__(**kwargs)
        # an Auto class needs the models as soon as there is a configuration
        self.package()

    @staticmethod
    def package() -> Any:
        """Register all models, and return the module that writes their folders.

        The package puts its own function here. None in the copy of this code that a folder brings along.
        """
        return None

    def check_name(self, name: str) -> None:
        """Check that somebody reads what is given or set by a name.

        Raises:
            ValueError: nobody does.
        """
        is_own = any(name in names for names in (self.__dataclass_fields__, self.attribute_map, SET_BY_OTHERS))
        # what is derived can be given where it is checked
        derived = getattr(type(self), name, None)
        is_given = derived is not None and getattr(derived, "fset", derived) is not None
        if not is_own and not name.startswith("_") and not is_given:
            close = difflib.get_close_matches(name, self.__dataclass_fields__, n=1)
            remedy = f"did you mean {close[0]!r}?" if close else "nobody would read it, so leave it out"
            raise ValueError(f"{type(self).__name__} has no field {name!r}; {remedy}")

    def __setattr__(self, name, value):
        self.check_name(name)
        if name in self.order_fields:
            value = [compact(order) for order in value] if isinstance(value, list) else compact(value)
        elif name in self.__dataclass_fields__ or name == "num_labels":
            check_value(type(self), name, value)
        if name == "rope_parameters" and isinstance(value, dict):
            # transformers completes it in place
            value = dict(value)
        super().__setattr__(name, value)

    @property
    def orders(self) -> dict[str, Order]:
        """The order of every stack, by the name of its field."""
        return {name: Order(getattr(self, name)) for name in self.order_fields}

    @property
    def order(self) -> Order:
        """The order of the last stack, which has the cache."""
        return [*self.orders.values()][-1]

    def with_orders(self, orders: Mapping[str, str | Order]) -> Self:
        """Return a copy with other orders, by their fields, and without what only letters need that are gone."""
        config = deepcopy(self)
        for name, order in orders.items():
            setattr(config, name, order)
        for name, value in unneeded_fields(config.orders.values()).items():
            setattr(config, name, value)
        return config

    @property
    def has_windows(self) -> bool:
        """Whether some attention is local."""
        return any(order.has_windows for order in self.orders.values())

    @property
    def num_sublayers(self) -> int:
        """The number of residual sublayers."""
        return sum(map(len, self.orders.values()))

    @property
    def head_width(self) -> int:
        """The width of a head of attention."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def key_value_heads(self) -> int:
        """How many heads have keys and values."""
        return self.num_key_value_heads or self.num_attention_heads

    def check_derived(self, name: str, derived: Any, given: Any) -> None:
        """Check what is given for something that follows from the last stack's order; None is nothing.

        Raises:
            ValueError: it is something else.
        """
        if given not in (None, derived):
            raise ValueError(
                f"{name}={given} contradicts the order {str(self.order)!r}, which makes it {derived}; change "
                f"{[*self.order_fields][-1]} instead"
            )

    @property
    def sliding_window(self) -> int:
        """The window by the name under which transformers' caches look for it; setting it sets the window.

        Raises:
            AttributeError: there is no local attention, or an encoder-decoder has it, the caches of whose stacks are
                made alike, and that of the source must stay whole.
        """
        if self.attention_window is None or self.is_encoder_decoder:
            raise AttributeError("sliding_window")
        return self.attention_window

    @sliding_window.setter
    def sliding_window(self, value: int | None):
        self.attention_window = value

    @property
    def layer_types(self) -> list[str]:
        """What transformers' caches keep in each of their slots.

        Raises:
            AttributeError: every slot keeps as many tokens, all or those of `sliding_window`.
        """
        kinds: list[str] = [self.order.kinds[place].slot_type for place in self.order.slots("self")]
        if self.is_encoder_decoder:
            # the caches of both sequences are made alike, and that of the source must stay whole
            kinds = ["hybrid" if kind == "hybrid" else "full_attention" for kind in kinds]
        if {*kinds} == {"conv"}:
            # transformers asks the cache for the length of the text
            kinds = ["hybrid"] * len(kinds)
        if {*kinds} <= {"full_attention"}:
            raise AttributeError("layer_types")
        return kinds + ["full_attention"] * (self.num_hidden_layers - len(kinds))

    @layer_types.setter
    def layer_types(self, value: list[str] | None):
        # where there are none, caches take them from the window
        kind = "sliding_attention" if hasattr(self, "sliding_window") else "full_attention"
        kinds = getattr(self, "layer_types", [kind] * self.num_hidden_layers)
        self.check_derived("layer_types", kinds, value)

    @property
    def folds_attention(self) -> bool:
        """Whether a single query of the last self-attention can be read without the keys and values of all tokens."""
        return (
            self.key_value_heads == self.num_attention_heads
            and self.position_embedding_type != "rotary"
            and not self.qk_norm
            and self.attn_logit_softcapping is None
            and self.relative_key_distance is None
        )

    @property
    def sizes(self) -> Sizes:
        """What the costs of sublayers depend on."""
        known = {f.name for f in fields(self)} & {*Sizes._fields} - {"attention_window"}
        of_letters = {own.name: getattr(self, own.name) or 0 for own in fields(FieldsOfLetters)}
        return Sizes(
            **{name: getattr(self, name) for name in known},
            kernel_size=max(getattr(self, "kernel_sizes", None) or [1]),
            folds_attention=self.folds_attention,
            norm_vectors=self.norm_affine
            * (1 + (self.norm_type == "layer" and self.norm_bias))
            * (1 + (self.norm_position == "both")),
            attention_window=of_letters.pop("attention_window"),
            letter_fields=of_letters,
        )

    @property
    def position_limit(self) -> float:
        """How many tokens a sequence may have; with dynamic scaling there is no limit."""
        rope_type = (self.rope_parameters or {}).get("rope_type")
        return math.inf if rope_type == "dynamic" else self.max_position_embeddings

    @property
    def num_hidden_layers(self) -> int:
        """The number of cache slots: self-attention and convolutions, or cross-attention where it is more numerous."""
        return max(len(self.order.slots("self")), len(self.order.slots("cross")))

    @num_hidden_layers.setter
    def num_hidden_layers(self, value: int | None):
        self.check_derived("num_hidden_layers", self.num_hidden_layers, value)

    @property
    def base_model_tp_plan(self) -> dict[str, str]:  # type: ignore[override]
        """The tensor-parallel plan of a model with one stack; of two, each brings its own."""
        first, *others = self.orders.values()
        return {} if others else tensor_parallel_plan(self, first)

    @property
    def base_model_ep_plan(self) -> dict[str, str]:  # type: ignore[override]
        """The expert-parallel plan of a model with one stack; of two, each brings its own."""
        first, *others = self.orders.values()
        return {} if others else expert_parallel_plan(first)

    def save_pretrained(self, save_directory: str | PathLike, push_to_hub: bool = False, **kwargs: Any) -> None:
        """Save; the code that a configuration's `auto_map` names is saved, too."""
        super().save_pretrained(save_directory)
        if self.auto_map and (package := self.package()):
            package.write_code(self, save_directory)
        if push_to_hub:
            self.push_to_hub(kwargs.pop("repo_id", Path(save_directory).name), **kwargs)

    def to_dict(self) -> dict[str, Any]:
        """Serialise, with the derived count that other readers of config.json look for."""
        return {**super().to_dict(), "num_hidden_layers": self.num_hidden_layers}

    def convert_rope_params_to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Take the parameters of rotary positions under all their names, where positions are rotary."""
        return super().convert_rope_params_to_dict(**kwargs) if self.position_embedding_type == "rotary" else kwargs

    def validate_rope(self):
        """Check and complete the parameters of rotary positions; others have none."""
        given = self.rope_parameters
        if self.position_embedding_type != "rotary":
            if given is not None:
                raise ValueError(
                    f"rope_parameters={given} are used only by rotary positions; give "
                    "position_embedding_type='rotary', or leave them out"
                )
            return
        self.rope_parameters = {"rope_theta": self.default_theta} | (given or {})
        self.standardize_rope_params()
        try:
            super().validate_rope()
        except KeyError as error:
            raise ValueError(f"rope_parameters={given} lack a value, so add it: {error.args[0]}") from error

    def validate_architecture(self):
        """Check the orders' letters and the heads; runs after construction, before saving and when a model is built."""
        for name, order in self.orders.items():
            letters = [letter for letter, row in ALPHABET.items() if self.order_fields[name] in row.stacks]
            if foreign := sorted({*order} - {*letters}):
                theirs, ours = (
                    ", ".join(f"{each} ({ALPHABET[each].name})" for each in some) for some in (foreign, letters)
                )
                raise ValueError(
                    f"{self.model_type} has no sublayers {theirs} in its {name}, here {str(order)!r}; use {ours}"
                )
        kinds = [kind for order in self.orders.values() for kind in order.kinds]
        for letter, kind in ALPHABET.items():
            for name, declared in kind.fields.items():
                value = getattr(self, name)
                if value is not None and kind not in kinds:
                    raise ValueError(f"{name}={value!r}, but the order has no sublayer {letter}; leave it out")
                if value is None and kind in kinds:
                    raise ValueError(f"{name}=None, but the order has sublayers {letter}; give {remedy(declared)}")
            for name, default in kind.options.items():
                if kind not in kinds and (value := getattr(self, name)) != default:
                    raise ValueError(f"{name}={value!r}, but the order has no sublayer {letter}; leave it out")
            if kind in kinds:
                kind.check(self.sizes)
        if isinstance(widths := self.intermediate_size, list):
            for order in self.orders.values():
                order.widths(widths)
            if len({*widths}) == 1:
                self.intermediate_size = widths[0]
        check_parts(self, kinds)

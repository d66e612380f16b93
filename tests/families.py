"""A tiny model of every family with its main head, rows of what the matrix of tests runs on, and their inputs."""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from common import BOS, EOS, PAD, VOCAB, every_other_local, randomize, tokens
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForTokenClassification,
    PreTrainedModel,
)

from sublayers import (
    AUTO_CLASSES,
    IOTSeq2SeqConfig,
    MacaronBertConfig,
    MacaronSeq2SeqConfig,
    Order,
    PARBertConfig,
    PARTransformerXLConfig,
    SandwichCharLMConfig,
    SandwichLMConfig,
    SandwichSeq2SeqConfig,
    expand,
    random_unbalanced,
)
from sublayers.convert.verify import measures_places

SIZES = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
SIZES |= {"max_position_embeddings": 64, "pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
SIZES |= dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0)
PAIR = {"encoder_sublayer_order": "sff", "decoder_sublayer_order": "fscscf"}
CHOICE = {"encoder_orders": ["sf", "fs"], "decoder_orders": ["scf", "fsc"]}
CHOICE |= {"num_encoder_blocks": 1, "num_decoder_blocks": 1}
# the configuration, the main head and the orders of each family
FAMILIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "sandwich_lm": (SandwichLMConfig, AutoModelForCausalLM, {"sublayer_order": "sfsff", "final_norm": True}),
    "par_bert": (PARBertConfig, AutoModelForMaskedLM, {"sublayer_order": "sfsff"}),
    "macaron_bert": (MacaronBertConfig, AutoModelForMaskedLM, {"sublayer_order": "fsffsf"}),
    "macaron_seq2seq": (MacaronSeq2SeqConfig, AutoModelForSeq2SeqLM, PAIR),
    "sandwich_seq2seq": (SandwichSeq2SeqConfig, AutoModelForSeq2SeqLM, PAIR),
    "iot_seq2seq": (IOTSeq2SeqConfig, AutoModelForSeq2SeqLM, CHOICE),
    "par_transformer_xl": (
        PARTransformerXLConfig,
        AutoModelForCausalLM,
        {"sublayer_order": "sfsff", "adaptive_cutoffs": [20, 40], "memory_length": 32},
    ),
    "sandwich_char_lm": (
        SandwichCharLMConfig,
        AutoModelForCausalLM,
        {"sublayer_order": "sfsff", "attention_span": 32, "span_ramp_size": 8},
    ),
}
# a second set of configurations, with the parts of today's models
TODAY = {"position_embedding_type": "rotary", "norm_type": "rms", "hidden_act": "silu", "gated_feed_forward": True}
TODAY |= {"num_key_value_heads": 2, "head_dim": 8, "qk_norm": True}
TODAY |= dict.fromkeys(("attention_bias", "attention_output_bias", "mlp_bias"), False)
HEADS = [(config_class, auto_class) for config_class, heads in AUTO_CLASSES.items() for auto_class in heads]
ENCODER_DECODERS = [family for family, (_, head, _) in FAMILIES.items() if head is AutoModelForSeq2SeqLM]
every_family = pytest.mark.parametrize("family", FAMILIES)
LOCAL = TODAY | {"sublayer_order": "(sfwf)2", "attention_window": 4}
TAIL = {"sublayer_order": "sf(mf)2"}
SINGLE = ("sandwich_lm", "par_bert")
every_family_and_todays_parts = pytest.mark.parametrize(
    ("family", "options"),
    [*((family, {}) for family in FAMILIES), *((family, parts) for parts in (LOCAL, TAIL) for family in SINGLE)],
    ids=[*FAMILIES, *(f"{family} {name}" for name in ("today", "tail") for family in SINGLE)],
)
every_model = pytest.mark.parametrize(("config_class", "auto_class"), HEADS, ids=lambda part: part.__name__)


def small(config_class: type, **options) -> Any:
    """A tiny configuration of a family."""
    orders = next(orders for known, _, orders in FAMILIES.values() if known is config_class)
    return config_class(**SIZES | orders | options)


def build_model(config_class: type, auto_class: type, **options) -> PreTrainedModel:
    return randomize(AUTO_CLASSES[config_class][auto_class](small(config_class, **options)))


def build(family: str, head: Any = None, **options) -> PreTrainedModel:
    config_class, main_head, _ = FAMILIES[family]
    return build_model(config_class, head or main_head, **options)


def inputs(model: PreTrainedModel, rows: int = 3, length: int = 9) -> dict[str, torch.Tensor]:
    """Tokens of which the second row is padded on its left and the third on its right."""
    mask = torch.ones(rows, length, dtype=torch.long)
    mask[1, :4] = mask[2, -3:] = 0
    batch = {"input_ids": tokens(rows, length), "attention_mask": mask}
    if model.config.is_encoder_decoder:
        batch["decoder_input_ids"] = tokens(rows, length - 2)
    return batch


def counts_gaps(config: Any) -> bool:
    """Whether padding between tokens has a place, as windows and kernels give it."""
    return measures_places(config) or any({*order.letters} & {*"dl"} for order in config.orders.values())


def padded(model: PreTrainedModel, auto_class: type | None = None) -> dict[str, torch.Tensor]:
    """Three rows, or three pairs of them to choose from, with a gap and with padding on both sides."""
    mask = torch.ones(3, 9, dtype=torch.long)
    mask[0, 2] = mask[1, :4] = mask[2, -3:] = 0
    if counts_gaps(model.config):
        mask[0, 2] = 1
    batch = {"input_ids": tokens(3, 9), "attention_mask": mask}
    if auto_class is AutoModelForMultipleChoice:
        return {name: torch.stack([rows, rows.flip(0)], 1) for name, rows in batch.items()}
    if model.config.is_encoder_decoder:
        batch |= {"decoder_input_ids": tokens(3, 9).flip(0), "decoder_attention_mask": mask.flip(0)}
    return batch


LABELS_OF_TOKENS = (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoModelForSeq2SeqLM,
    AutoModelForTokenClassification,
)


def labelled(model: PreTrainedModel, head: type) -> dict[str, torch.Tensor]:
    """The same with segments, and with labels, which some tokens have, but no padding nor what stands after it."""
    batch = padded(model, head)
    if getattr(model.config, "type_vocab_size", 1) > 1:
        batch["token_type_ids"] = batch["input_ids"] % 2
    if head is AutoModelForQuestionAnswering:
        return batch | {"start_positions": torch.tensor([1, 5, 0]), "end_positions": torch.tensor([4, 8, 3])}
    if head not in LABELS_OF_TOKENS:
        return batch | {"labels": torch.tensor([1, 0, 1])}
    side = "decoder_" if model.config.is_encoder_decoder else ""
    ids, real = batch[f"{side}input_ids"], batch[f"{side}attention_mask"].bool()
    is_labelled = real & real.roll(1, 1) & (ids % 3 > 0)
    is_labelled[:, 0] = False
    words = ids % 2 if head is AutoModelForTokenClassification else ids
    batch["labels"] = words.where(is_labelled, -100)
    return batch | ({"next_sentence_label": torch.tensor([1, 0, 1])} if head is AutoModelForPreTraining else {})


def unlabelled(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: rows for name, rows in batch.items() if name.endswith(("_ids", "_mask"))}


def texts(batch: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """The same rows one by one, without padding and labels; of choices, each is a row of its own."""
    found: list[dict[str, torch.Tensor]] = [{} for _ in batch["attention_mask"].flatten(0, -2)]
    for name, rows in batch.items():
        if name.endswith("_ids"):
            mask = batch["decoder_attention_mask" if name.startswith("decoder") else "attention_mask"].bool()
            for text, ids, real in zip(found, rows.flatten(0, -2), mask.flatten(0, -2), strict=True):
                text[name] = ids[real].view(*[1] * (mask.ndim - 1), -1)
    return found


def logits(model, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The scores that are not those of padding: (tokens, vocabulary)."""
    with torch.no_grad():
        scores = model(**batch).logits
    return scores.flatten(0, 1) if "decoder_input_ids" in batch else scores[batch["attention_mask"].bool()]


def real_of(batch: dict[str, torch.Tensor], name: str = "") -> torch.Tensor:
    """Where the tokens are that an output of this name is about."""
    side = "encoder_attention_mask" if name.startswith("encoder") else "decoder_attention_mask"
    return batch.get(side, batch["attention_mask"]).bool()


def tensors(out, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """All tensors of an output, those of tokens without padding."""
    found = {}
    for name, value in out.items():
        if isinstance(value, torch.Tensor):
            real = real_of(batch, name)
            found[name] = value[real] if value.shape[: real.ndim] == real.shape else value
    return found


class Row(NamedTuple):
    """A family with some of its parts: a row of the matrix of tests, which build its models by it."""

    family: str
    # of its stacks, in which tests run it, and orders whose last stack remembers no token
    orders: list[tuple[str, ...]]
    others: list[tuple[str, ...]]
    options: dict[str, Any] = {}
    # what its models get beside random weights
    prepare: Callable[[PreTrainedModel], object] = id
    # among how many orders of each stack the rows of a batch choose
    choices: tuple[int, ...] = ()
    # whether each feed-forward sublayer is wider than the one before
    widens: bool = False
    # `make test` runs on it only tests that say so
    is_sibling: bool = False

    @property
    def all_orders(self) -> list[tuple[str, ...]]:
        return [*self.orders, *self.others]

    @property
    def some_orders(self) -> list[tuple[str, ...]]:
        return [*self.orders[:2], self.orders[-1], *self.others[:1]]

    @property
    def heads(self) -> dict[type, type]:
        return AUTO_CLASSES[FAMILIES[self.family][0]]

    @property
    def main_head(self) -> type:
        return FAMILIES[self.family][1]

    def config(self, *orders: str, **options) -> Any:
        config_class = FAMILIES[self.family][0]
        stacks: dict[str, Any] = dict(zip(config_class.order_fields, orders or self.orders[0], strict=True))
        parts = {"attention_window": 3} if any("w" in order for order in stacks.values()) else {}
        if any("g" in order for order in stacks.values()):
            parts |= {"short_kernel_size": 4}
        if self.widens:
            wide = Order([*stacks.values()][-1]).unique_letters.count("f")
            parts |= {"intermediate_size": [16 + 8 * i for i in range(wide)]} if wide else {}
        if self.choices:
            stacks = {name: rotations(order)[:n] for (name, order), n in zip(stacks.items(), self.choices, strict=True)}
            parts = {"num_encoder_blocks": 1, "num_decoder_blocks": 1}
        return config_class(**SIZES | NARROW | stacks | parts | self.options | options)

    def build(self, head: type = AutoModel, *orders: str, **options) -> PreTrainedModel:
        model = randomize(self.heads[head](self.config(*orders, **options)))
        self.prepare(model)
        return model

    def main(self, *orders: str, **options) -> PreTrainedModel:
        """Its main head, with an output that is not that of random embeddings."""
        return self.build(self.main_head, *orders, **{"tie_word_embeddings": False} | options)


def rotations(order: str) -> list[str]:
    letters = expand(order)
    return list(dict.fromkeys(letters[i:] + letters[:i] for i in range(len(letters))))


def set_spans(model: PreTrainedModel):
    """Let the heads of attention see differently far."""
    for number, attention in enumerate(model.base_model.span_attentions()):
        if attention.span is not None:
            with torch.no_grad():
                attention.span.copy_(torch.tensor([0.0, 0.02, 0.1, 0.6]).roll(number))


def choose_differently(model: PreTrainedModel):
    """Draw predictors of orders until three rows do not choose the same."""
    encoder = model.base_model.encoder
    batch = {name: rows for name, rows in padded(model).items() if not name.startswith("decoder")}
    for name, predictor in encoder.named_children():
        for seed in itertools.count() if name.endswith("_predictor") else ():
            with torch.no_grad():
                predictor.weight.normal_(generator=torch.Generator().manual_seed(seed))
                chosen = encoder(**batch)[name.removesuffix("_predictor")]
            if len(chosen.unique()) > 1:
                break


NARROW = {"hidden_size": 16, "intermediate_size": 24}
WITH_MEMORY = [(order,) for order in ("sfsfsff", "ffsfs", "sss", "s2(sf)2f2")]
WITH_MEMORY += [(random_unbalanced(7, seed),) for seed in range(3)]
ORDERS = [*WITH_MEMORY, ("s2fmfm",)]
# an order may lack attention altogether: it is scored and trained, but there is nothing to cache
ALL_FEED_FORWARD = [("f4",)]
# more cross- than self-attention, more self- than cross-attention, and an encoder without attention
PAIRS = [("sff", "fscscf"), ("sf", "scf"), ("ssff", "scscff"), ("ff", "ccsf"), ("sf", "sscf"), ("s", "csf")]
PAIRS += [("fsfsf", "fcsffc"), ("ssfs", "cfssc"), ("fs", "sf"), ("sfmf", "scfmcf")]
WITHOUT_SELF_ATTENTION = [("sf", "cf"), ("sf", "fcc"), ("ff", "f")]
CONVOLUTIONS = [("dlf", "fdclcf"), ("df", "dcf"), ("lsf", "lcsfd"), ("dl", "dcc"), ("sfd", "scld"), ("l", "csf")]
SHORT = [("gfsfgff",), ("ggf",), ("sg",), ("(g_0f_0)2sg_0f",), ("gsfmf",)]
FEW_PAIRS = [("sff", "fscscf"), ("ff", "ccsf"), ("sff", "scsf"), ("sf", "sscf")]
ADAPTIVE = {"adaptive_cutoffs": [20, 40], "adaptive_factor": 2, "adaptive_softmax_dropout": 0.0}
RELATIVE = {"adaptive_cutoffs": [20, 40], "memory_length": 64, "max_position_embeddings": None}
SPANS = {"attention_span": 64, "span_ramp_size": 4, "span_loss": 0.0, "max_position_embeddings": None}
# farther ones are alike
DISTANCES = {"relative_key_distance": 3}
# states smaller than most texts, and chunks shorter
MAMBA2 = {"recurrence": "mamba2", "recurrence_state_size": 6, "recurrence_n_groups": 2, "recurrence_chunk_size": 4}
GATED_DELTA = {"recurrence": "gated_delta", "recurrence_n_groups": 2, "recurrence_chunk_size": 3}
# where little is read, a norm would enlarge how it is rounded
GATED_DELTA |= {"layer_norm_eps": 1e-2, "attention_output_gate": True}
RECURRENCES = [("rfsrff",), ("frrf",), ("rswfrf",), ("r_0fr_0f",), ("srfmfm",)]
RECURRENT_PAIRS = [("sff", "frcscf"), ("sf", "rcf"), ("ff", "rsccrf")]
# wider than most sentences here
KERNELS = {"kernel_sizes": [3, 4, 9]}


def some_local(orders: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    return [tuple(map(every_other_local, stacks)) for stacks in orders]


# two sublayers in all, some beside others, and some in the tail
SHARED = [("(s_0f_0)3",), ("s_0f_0s_1f_1(s_0f_0)2f_0",), ("fs_0s_0f_0sf_0",)]
SHARED_PAIRS = [
    ("(s_0f_0)2", "(s_0c_0f_0)2"),
    ("s_0d_0f_0s_0d_0d", "s_0c_0l_0l_0csf_0c_0f_0"),
    ("f_0sf_0", "sc_0f_0c_0m_0f_0m_0"),
]
# as many feed-forwards in both stacks
WIDE_PAIRS = [("(sf)2", "(scf)2"), ("fs2f2", "sfcfscf")]
# experts of unequal importance, and one that all tokens have
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "norm_topk_prob": True}
EXPERTS |= {"shared_expert_intermediate_size": 8, "shared_expert_gate": True}
ROUTED = [("seswee",), ("eesfs",), ("(s_0e_0)2e",), ("s2emem",)]
# what the rows of a batch choose among two and three orders
DIFFERENT = (choose_differently, (2, 3))


ROWS = {
    "sandwich_lm": Row("sandwich_lm", ORDERS, ALL_FEED_FORWARD),
    "sandwich_lm today": Row("sandwich_lm", some_local(ORDERS), ALL_FEED_FORWARD, TODAY),
    "sandwich_lm adaptive": Row("sandwich_lm", ORDERS, ALL_FEED_FORWARD, ADAPTIVE, is_sibling=True),
    "par_bert": Row("par_bert", ORDERS, ALL_FEED_FORWARD),
    "par_bert today": Row("par_bert", some_local(ORDERS), ALL_FEED_FORWARD, TODAY),
    "macaron_bert": Row("macaron_bert", ORDERS, ALL_FEED_FORWARD, is_sibling=True),
    "par_transformer_xl": Row("par_transformer_xl", WITH_MEMORY, ALL_FEED_FORWARD, RELATIVE),
    "sandwich_char_lm": Row(
        "sandwich_char_lm",
        WITH_MEMORY,
        ALL_FEED_FORWARD,
        SPANS,
        set_spans,
    ),
    "sandwich_lm shared": Row("sandwich_lm", [*SHARED, ("(w_0f_0)2(m_0f_0)2",)], [("(f_0)4",)], TODAY),
    "par_bert shared": Row("par_bert", [*SHARED, ("(w_0f_0)2(m_0f_0)2",)], [("(f_0)4",)], is_sibling=True),
    "par_transformer_xl shared": Row("par_transformer_xl", SHARED, [("(f_0)4",)], RELATIVE, is_sibling=True),
    "sandwich_char_lm shared": Row("sandwich_char_lm", SHARED, [("(f_0)4",)], SPANS, set_spans, is_sibling=True),
    "sandwich_lm distances": Row("sandwich_lm", WITH_MEMORY[:4], ALL_FEED_FORWARD, DISTANCES),
    "par_bert distances": Row("par_bert", WITH_MEMORY[:4], ALL_FEED_FORWARD, DISTANCES, is_sibling=True),
    "sandwich_seq2seq distances": Row(
        "sandwich_seq2seq", PAIRS[:4], WITHOUT_SELF_ATTENTION, DISTANCES, is_sibling=True
    ),
    "sandwich_lm widths": Row("sandwich_lm", [*ORDERS[:3], *SHARED[1:]], ALL_FEED_FORWARD, TODAY, widens=True),
    "par_bert widths": Row("par_bert", ORDERS[:4], ALL_FEED_FORWARD, widens=True, is_sibling=True),
    "par_transformer_xl widths": Row("par_transformer_xl", WITH_MEMORY[:2], [], RELATIVE, widens=True, is_sibling=True),
    "sandwich_lm short convolutions": Row("sandwich_lm", [*SHORT, ("wgfwg",)], ALL_FEED_FORWARD, TODAY),
    "par_bert short convolutions": Row("par_bert", [*SHORT, ("wgfwg",)], ALL_FEED_FORWARD, is_sibling=True),
    "sandwich_seq2seq shared": Row("sandwich_seq2seq", SHARED_PAIRS, [("(s_0)2", "(c_0f)2")], KERNELS),
    "sandwich_seq2seq": Row("sandwich_seq2seq", PAIRS, WITHOUT_SELF_ATTENTION),
    "sandwich_seq2seq today": Row("sandwich_seq2seq", some_local(PAIRS), WITHOUT_SELF_ATTENTION, TODAY),
    "sandwich_seq2seq widths": Row("sandwich_seq2seq", WIDE_PAIRS, [("f2", "cf2")], widens=True, is_sibling=True),
    "macaron_seq2seq": Row("macaron_seq2seq", PAIRS, WITHOUT_SELF_ATTENTION, is_sibling=True),
    "iot_seq2seq": Row("iot_seq2seq", FEW_PAIRS, [("sf", "cf")], {}, choose_differently, choices=(2, 3)),
    "iot_seq2seq of one order": Row("iot_seq2seq", FEW_PAIRS, [("sf", "cf")], choices=(1, 1), is_sibling=True),
    "sandwich_lm recurrence": Row("sandwich_lm", RECURRENCES, [], MAMBA2),
    "sandwich_lm gated delta": Row("sandwich_lm", RECURRENCES, [], TODAY | GATED_DELTA | {"norm_position": "both"}),
    "sandwich_seq2seq recurrence": Row("sandwich_seq2seq", RECURRENT_PAIRS, [], GATED_DELTA, is_sibling=True),
    "iot_seq2seq recurrence": Row("iot_seq2seq", [("sff", "rcf"), ("sf", "frc")], [], MAMBA2, *DIFFERENT),
    "convolutions": Row("sandwich_seq2seq", CONVOLUTIONS, [], KERNELS),
    "convolutions without gates": Row(
        "sandwich_seq2seq", CONVOLUTIONS, [], KERNELS | {"gated_convolutions": False}, is_sibling=True
    ),
    "sandwich_lm experts": Row("sandwich_lm", ROUTED, [("e4",)], TODAY | EXPERTS),
    "par_bert experts": Row("par_bert", ROUTED, [("e4",)], EXPERTS | {"attention_output_gate": True}),
    "sandwich_seq2seq experts": Row("sandwich_seq2seq", [("see", "escsce")], [("ee", "ec")], EXPERTS, is_sibling=True),
    "par_transformer_xl experts": Row(
        "par_transformer_xl", [("sesee",), ("ees",)], [("e4",)], RELATIVE | EXPERTS, is_sibling=True
    ),
    "sandwich_char_lm experts": Row(
        "sandwich_char_lm", [("sesee",), ("ees",)], [("e4",)], SPANS | EXPERTS, set_spans, is_sibling=True
    ),
    "iot_seq2seq experts": Row("iot_seq2seq", [("se", "sce")], [("se", "ce")], EXPERTS, *DIFFERENT, is_sibling=True),
}
LMS = ("sandwich_lm", "par_transformer_xl", "sandwich_char_lm")
BERTS = ("par_bert", "macaron_bert")


def every_row(*families: str, heads: Callable[[Row], Any] | None = None, siblings: bool = False):
    """Run a test on every row of some families, or of all, and on some of their heads.

    Siblings are last, and left to `make test-full` where the test does not ask for them; main heads are first.
    """
    cases = []
    for name, row in ROWS.items():
        marks = [pytest.mark.full] if row.is_sibling and not siblings else []
        for head in heads(row) if heads else [None]:
            if not families or row.family in families:
                values = (row, head) if heads else (row,)
                found = f"{name} {head.__name__}" if heads else name
                order = row.is_sibling, head not in (None, row.main_head)
                cases.append((order, pytest.param(*values, id=found, marks=marks)))
    cases = [case for _, case in sorted(cases, key=lambda case: case[0])]
    return pytest.mark.parametrize(("row", "head") if heads else "row", cases)

"""What `sublayers bench lm` measures: SandwichLM beside GPT-2 and x-transformers, or beside a decoder of today."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    GPT2Config,
    GPT2LMHeadModel,
    Lfm2Config,
    LlamaConfig,
    MixtralConfig,
    NemotronHConfig,
    Qwen3Config,
)

from sublayers.configuration.order import Order, compact, interleaved, sandwich
from sublayers.convert.sources import from_transformers
from sublayers.modeling.mixers.recurrence import KINDS
from sublayers.modeling.modeling_sandwich_lm import SandwichLMForCausalLM
from sublayers.training.flags import flag, number
from sublayers.training.lab.bench import contenders
from sublayers.training.lab.bench.contenders import MISSING, OURS, X_TRANSFORMERS, Calls
from sublayers.training.lab.bench.flags import BenchFlags, size
from sublayers.training.metrics.timing import Call, Comparison, Task

# peers whose parts SandwichLM has, by the values of --peer
PEERS = {"gpt2": "GPT-2", "llama": "Llama", "qwen3": "Qwen3"}
# those with other letters, in whose own order they are: some of their layers have attention
UNITS = {"lfm2": ("gf", 3), "mixtral": ("se", 1), "nemotron_h": ("rf", 4)}
PEERS |= {"lfm2": "LFM2", "mixtral": "Mixtral", "nemotron_h": "Nemotron-H"}
TODAY = "Ratios are to transformers' {peer} of the same sizes, whose parts SandwichLM has here, too."
REMARK = (
    "Ratios are to GPT-2 and to x-transformers in the same order, which has no biases in attention and norms, and the "
    "exact GELU where GPT-2 and SandwichLM have its approximation by tanh."
)
ORDERS = "interleaved and half sandwiched"


@dataclass(kw_only=True)
class Flags(BenchFlags):
    """Flags of `sublayers bench lm`; those of PAR Transformer-XL are `recurrent_lm`'s."""

    layers: int = size("layers", 8)
    hidden_size: int = size("hidden_size", 512)
    heads: int = size("heads", 8)
    vocab_size: int = size("vocab_size", 50257)
    batch_size: int = size("batch_size", 1)
    length: int = size("length", 256)
    prompt_length: int = size("prompt_length", 32)
    new_tokens: int = size("new_tokens", 64)
    repeats: int = size("repeats", 7)
    peer: str = flag("peer, whose parts ours has", "gpt2", choices=PEERS)
    attention_window: int = number("window of sublayers w in --orders", 128)
    recurrence: str | None = flag(
        "kind of sublayers r in --orders; default: the peer's, or mamba2", None, choices=KINDS
    )
    decode_batch_sizes: list[int] = number("texts that are decoded", [1, 8])
    memory: bool = flag("measure PAR Transformer-XL instead, which has memory", False)


def default_orders(args: Flags) -> list[str]:
    """The interleaved order, and half of it sandwiched; or that of a peer with other letters."""
    if args.peer not in UNITS:
        return [interleaved(args.layers), sandwich(args.layers, args.layers // 2)]
    unit, every = UNITS[args.peer]
    return [compact("".join(unit if i % every or every == 1 else f"s{unit[1:]}" for i in range(1, args.layers + 1)))]


def build_peer(num_positions: int, args: Flags) -> Any:
    """Build GPT-2, or a peer of today with as many parameters in gated sublayers, in which two queries share a key.

    Of Mixtral's experts, a token has as many parameters as of a feed-forward.
    """
    sizes = contenders.sizes(args, num_hidden_layers=args.layers, max_position_embeddings=num_positions)
    sizes |= {"bos_token_id": None, "eos_token_id": None}
    if args.peer == "gpt2":
        del sizes["intermediate_size"]
        model = GPT2LMHeadModel(GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
        # transformers does not find its loss by the name of GPT-2's class, and would say so
        model.loss_type = "ForCausalLM"
        return model
    sizes |= {"intermediate_size": 8 * round(args.hidden_size / 3), "num_key_value_heads": max(1, args.heads // 2)}
    sizes |= {"head_dim": args.hidden_size // args.heads, "tie_word_embeddings": True}
    width, letters = sizes["intermediate_size"], Order(default_orders(args)[0]).letters
    if args.peer == "lfm2":
        del sizes["head_dim"]
        kinds = ["conv" if letter == "g" else "full_attention" for letter in letters[::2]]
        config: Any = Lfm2Config(**sizes, layer_types=kinds, block_auto_adjust_ff_dim=False)
    elif args.peer == "nemotron_h":
        # two heads of keys and twice the width, as in its models; its feed-forwards have no gate
        sizes |= {"intermediate_size": 4 * args.hidden_size, "hybrid_override_pattern": to_pattern(letters)}
        sizes |= {"mamba_head_dim": sizes["head_dim"], "mamba_num_heads": 2 * args.heads, "n_groups": 2}
        config = NemotronHConfig(**{name: value for name, value in sizes.items() if name != "num_hidden_layers"})
    elif args.peer == "mixtral":
        config = MixtralConfig(**sizes | {"intermediate_size": width // 2, "sliding_window": None})
    else:
        config = {"llama": LlamaConfig, "qwen3": Qwen3Config}[args.peer](**sizes)
    return AutoModelForCausalLM.from_config(config)


def to_pattern(letters: str) -> str:
    """Spell an order as Nemotron-H does."""
    return letters.translate(str.maketrans("rsf", "M*-"))


def language_models(args: Flags) -> dict[str, Any]:
    """Build the peer, SandwichLM in each order and, beside GPT-2 and where it is installed, x-transformers in them.

    All have the same sizes and no dropout; the interleaved SandwichLM has the peer's weights, too.
    """
    torch.manual_seed(0)
    num_positions = max(args.length, args.prompt_length + args.new_tokens)
    peer = build_peer(num_positions, args)
    copy, _ = from_transformers(peer, {})
    models: dict[str, Any] = {PEERS[args.peer]: peer}
    for order in args.orders:
        config: Any = deepcopy(copy.config)
        config.attention_window = args.attention_window
        config.recurrence = args.recurrence or config.recurrence or "mamba2"
        config.short_kernel_size = config.short_kernel_size or 3
        if config.num_experts is None:
            # of these, a token has as many parameters as of a feed-forward
            config.num_experts, config.num_experts_per_tok = 8, 2
            config.moe_intermediate_size = config.intermediate_size // 2
        config = config.with_orders({"sublayer_order": order})
        same = order == copy.config.sublayer_order
        models[f"{OURS} {order}"] = copy if same else SandwichLMForCausalLM(config)
    if args.peer == "gpt2" and find_spec("x_transformers"):
        from x_transformers import AutoregressiveWrapper

        # it has no other letters, and no names
        for order in filter(lambda order: {*Order(order).spelled} <= {*"sf"}, args.orders):
            body = contenders.x_transformer(order, args, {"attn_flash": True}, max_seq_len=num_positions)
            models[f"{X_TRANSFORMERS} {order}"] = AutoregressiveWrapper(body)
    return contenders.place(models, args)


def transformers_calls(model: Any, ids: Tensor) -> dict[str, Call]:
    """Make what a model of transformers, ours among them, has to call; prefill returns what a cache keeps."""

    def prefill() -> list[Tensor]:
        # as `generate` makes it
        cache = DynamicCache(config=model.config)
        model(ids, cache=cache, logits_to_keep=1)
        kept = [each for layer in cache.layers for each in vars(layer).values()]
        # keys and values, and states by their names
        kept += [each for some in kept if isinstance(some, dict) for each in some.values()]
        return [each for each in kept if isinstance(each, Tensor)]

    return {
        "train step": lambda: model(ids, labels=ids, use_cache=False).loss,
        "forward": lambda: model(ids, use_cache=False).logits,
        "prefill": prefill,
    }


def x_transformers_calls(model: Any, ids: Tensor) -> dict[str, Call]:
    """Make what a model of x-transformers has to call; prefill returns the keys and values."""

    def prefill() -> list[Tensor]:
        # x-transformers generates from the logits of the whole prompt, but can compute those of one token
        hidden_states, intermediates = model.net(ids, return_embeddings_and_intermediates=True)
        model.net.to_logits(hidden_states[:, -1:])
        return [tensor for layer in intermediates.attn_intermediates for tensor in layer.cached_kv]

    return {"train step": lambda: model(ids), "forward": lambda: model.net(ids), "prefill": prefill}


def comparison(args: Flags) -> Comparison:
    """Compare SandwichLM in each order with its peer and, beside GPT-2, with x-transformers."""
    models, first = language_models(args), PEERS[args.peer]
    ids = torch.randint(args.vocab_size, (args.batch_size, args.length), device=args.device)
    calls: Calls = {
        name: (x_transformers_calls if name.startswith(X_TRANSFORMERS) else transformers_calls)(model, ids)
        for name, model in models.items()
    }

    def tasks() -> Iterator[Task]:
        yield contenders.training("train step", models, contenders.of_task(calls, "train step"))
        contenders.freeze(models)
        for task in ("forward", "prefill"):
            yield contenders.counted(task, contenders.of_task(calls, task))
        for rows in args.decode_batch_sizes:
            prompt = torch.randint(args.vocab_size, (rows, args.prompt_length), device=args.device)
            yield contenders.decoding(f"decode {rows}x{args.new_tokens}", models, prompt, args.new_tokens)

    def cache_bytes(name: str) -> int:
        models[name].eval()
        return sum(tensor.nbytes for tensor in calls[name]["prefill"]())

    with torch.no_grad():
        cached = {name: cache_bytes(name) for name in models}
    totals = {"parameters": contenders.parameters(models), f"cache of {args.batch_size}x{args.length} (bytes)": cached}
    peers = {name: [first, name.replace(OURS, X_TRANSFORMERS)] for name in models}
    remark = REMARK if find_spec("x_transformers") else f"Ratios are to GPT-2; {MISSING}"
    return Comparison(tasks(), peers, totals, remark if args.peer == "gpt2" else TODAY.format(peer=first))

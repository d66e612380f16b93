"""What `sublayers bench lm` measures: SandwichLM beside GPT-2 and x-transformers, or beside a decoder of today."""

import argparse
from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, PreTrainedModel, Qwen3Config

from sublayers.configuration.sublayer_cost import flops
from sublayers.configuration.sublayer_order import expand, interleaved, sandwich
from sublayers.modeling.modeling_sandwich_lm import SandwichLMForCausalLM
from sublayers.training.convert.language_models import from_gpt2
from sublayers.training.convert.llama import from_llama
from sublayers.training.flags import positive
from sublayers.training.metrics.timing import Call, Comparison, Task, train_step

# a model's name -> its order and itself
Models = dict[str, tuple[str, nn.Module]]

OURS, X_TRANSFORMERS = "sublayers", "x-transformers"
# peers whose parts SandwichLM has, by the values of --peer
PEERS = {"gpt2": "GPT-2", "llama": "Llama", "qwen3": "Qwen3"}
MISSING = (
    'Ratios are to GPT-2; x-transformers is not installed, pip install "sublayers[bench]" adds it to the comparison.'
)
TODAY = "Ratios are to transformers' {peer} of the same sizes, whose parts SandwichLM has here, too."
REMARK = (
    "Ratios are to GPT-2 and to x-transformers in the same order, which has no biases in attention and norms, and the "
    "exact GELU where GPT-2 and SandwichLM have its approximation by tanh."
)


SIZES = {
    "layers": (8, "self-attention sublayers, and as many feed-forward ones"),
    "hidden_size": (512, "width; feed-forward sublayers are four times as wide"),
    "heads": (8, "attention heads"),
    "vocab_size": (50257, "tokens in the vocabulary"),
    "batch_size": (1, "sequences in train step, forward and prefill"),
    "length": (256, "tokens of these sequences"),
    "prompt_length": (32, "tokens before decoding"),
    "new_tokens": (64, "tokens that are decoded"),
    "repeats": (7, "rounds, after one to warm up"),
}
# measured unless --orders says otherwise
ORDERS = "interleaved and half sandwiched"
# what other benches do not have
FLAGS: dict[str, dict[str, Any]] = {
    "--peer": {"choices": PEERS, "default": "gpt2", "help": "peer, whose parts ours has"},
    "--attention_window": {"type": positive, "default": 128, "help": "window of sublayers w in --orders"},
    "--decode_batch_sizes": {"type": positive, "nargs": "+", "default": [1, 8], "help": "texts that are decoded"},
    "--memory": {"action": "store_true", "help": "measure PAR Transformer-XL instead, which has memory"},
}


def default_orders(args: argparse.Namespace) -> list[str]:
    """The interleaved order, and half of it sandwiched."""
    return [interleaved(args.layers), sandwich(args.layers, args.layers // 2)]


def gpt2(num_positions: int, args: argparse.Namespace) -> GPT2LMHeadModel:
    """Build GPT-2."""
    config = GPT2Config(
        vocab_size=args.vocab_size,
        n_positions=num_positions,
        n_embd=args.hidden_size,
        n_layer=args.layers,
        n_head=args.heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = GPT2LMHeadModel(config)
    # transformers does not find its loss by the name of GPT-2's class, and would say so
    model.loss_type = "ForCausalLM"
    return model


def decoder_of_today(num_positions: int, args: argparse.Namespace) -> PreTrainedModel:
    """Build Llama or Qwen3, in which two queries share a key, with as many parameters as GPT-2 in gated sublayers."""
    config_class = {"llama": LlamaConfig, "qwen3": Qwen3Config}[args.peer]
    config = config_class(
        vocab_size=args.vocab_size,
        hidden_size=args.hidden_size,
        intermediate_size=8 * round(args.hidden_size / 3),
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        num_key_value_heads=max(1, args.heads // 2),
        head_dim=args.hidden_size // args.heads,
        max_position_embeddings=num_positions,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    return AutoModelForCausalLM.from_config(config)


def language_models(args: argparse.Namespace) -> Models:
    """Build the peer, SandwichLM in each order and, beside GPT-2 and where it is installed, x-transformers in them.

    All have the same sizes and no dropout; the interleaved SandwichLM has the peer's weights, too.
    """
    torch.manual_seed(0)
    num_positions = max(args.length, args.prompt_length + args.new_tokens)
    peer: Any = (gpt2 if args.peer == "gpt2" else decoder_of_today)(num_positions, args)
    copy, _ = from_gpt2(peer) if args.peer == "gpt2" else from_llama(peer)
    models: Models = {PEERS[args.peer]: (copy.config.sublayer_order, peer)}
    for order in args.orders:
        config: Any = deepcopy(copy.config)
        config.sublayer_order = order
        config.attention_window = args.attention_window if "w" in order else None
        same = order == copy.config.sublayer_order
        models[f"{OURS} {order}"] = (order, copy if same else SandwichLMForCausalLM(config))
    for order in args.orders if args.peer == "gpt2" and find_spec("x_transformers") else []:
        models[f"{X_TRANSFORMERS} {order}"] = (order, x_transformer(order, num_positions, args))
    for _, model in models.values():
        model.to(args.device, getattr(torch, args.dtype))
    return models


def x_transformer(order: str, num_positions: int, args: argparse.Namespace) -> nn.Module:
    """Build the language model of x-transformers that is nearest to ours."""
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    layers = Decoder(
        dim=args.hidden_size,
        depth=args.layers,
        heads=args.heads,
        attn_dim_head=args.hidden_size // args.heads,
        attn_flash=True,
        custom_layers=tuple(expand(order).replace("s", "a")),
    )
    body = TransformerWrapper(
        num_tokens=args.vocab_size, max_seq_len=num_positions, attn_layers=layers, tie_embedding=True
    )
    return AutoregressiveWrapper(body)


def transformers_calls(model: Any, ids: Tensor, prompts: dict[str, Tensor], new_tokens: int) -> dict[str, Call]:
    """Make what a model of transformers, ours among them, has to call; prefill returns the keys and values."""

    def prefill() -> list[Tensor]:
        output = model(ids, use_cache=True, logits_to_keep=1)
        return [tensor for layer in output.past_key_values.layers for tensor in (layer.keys, layer.values)]

    def decode(prompt: Tensor) -> Tensor:
        mask = torch.ones_like(prompt)
        return model.generate(prompt, attention_mask=mask, max_new_tokens=new_tokens, do_sample=False)

    return {
        "loss": lambda: model(ids, labels=ids, use_cache=False).loss,
        "forward": lambda: model(ids, use_cache=False).logits,
        "prefill": prefill,
        **{task: partial(decode, prompt) for task, prompt in prompts.items()},
    }


def x_transformers_calls(model: Any, ids: Tensor, prompts: dict[str, Tensor], new_tokens: int) -> dict[str, Call]:
    """Make what a model of x-transformers has to call; prefill returns the keys and values."""

    def prefill() -> list[Tensor]:
        # its own generation scores the whole prompt, but one token's logits can be had
        hidden_states, intermediates = model.net(ids, return_embeddings_and_intermediates=True)
        model.net.to_logits(hidden_states[:, -1:])
        return [tensor for layer in intermediates.attn_intermediates for tensor in layer.cached_kv]

    return {
        "loss": lambda: model(ids),
        "forward": lambda: model.net(ids),
        "prefill": prefill,
        **{task: partial(model.generate, prompt, new_tokens, temperature=0.0) for task, prompt in prompts.items()},
    }


def comparison(args: argparse.Namespace) -> Comparison:
    """Compare SandwichLM in each order with its peer and, beside GPT-2, with x-transformers."""
    models, first = language_models(args), PEERS[args.peer]
    ours: Any = next(model for name, (_, model) in models.items() if name.startswith(OURS))
    sizes = ours.config.sizes._asdict()
    ids = torch.randint(args.vocab_size, (args.batch_size, args.length), device=args.device)
    prompts = {
        f"decode {batch_size}x{args.new_tokens}": torch.randint(
            args.vocab_size, (batch_size, args.prompt_length), device=args.device
        )
        for batch_size in args.decode_batch_sizes
    }
    calls = {
        name: (x_transformers_calls if name.startswith(X_TRANSFORMERS) else transformers_calls)(
            model, ids, prompts, args.new_tokens
        )
        for name, (_, model) in models.items()
    }

    def gigaflops(name: str, task: str) -> float:
        read = 1 if task == "prefill" else args.length
        # the logits of one token need the whole body everywhere but in ours
        body_read = read if name.startswith(OURS) else args.length
        body = flops(models[name][0], length=args.length, read=body_read, keeps_cache=True, **sizes)
        passes = 3 if task == "train step" else 1
        return passes * args.batch_size * (body + 2 * read * args.hidden_size * args.vocab_size) / 1e9

    def gigabytes(model: nn.Module) -> float:
        return args.new_tokens * sum(parameter.nbytes for parameter in model.parameters()) / 1e9

    def tasks() -> Iterator[Task]:
        for _, model in models.values():
            model.train()
        # no name here keeps the optimizers and their memory
        yield Task(
            "train step",
            "GFLOP",
            {name: partial(train_step(model), calls[name]["loss"]) for name, (_, model) in models.items()},
            {name: gigaflops(name, "train step") for name in models},
        )
        for _, model in models.values():
            model.eval().requires_grad_(False)
        for task in ("forward", "prefill"):
            by_model = {name: calls[name][task] for name in models}
            yield Task(task, "GFLOP", by_model, {name: gigaflops(name, task) for name in models})
        for task in prompts:
            by_model = {name: calls[name][task] for name in models}
            yield Task(task, "GB", by_model, {name: gigabytes(model) for name, (_, model) in models.items()})

    def cache_bytes(name: str) -> int:
        models[name][1].eval()
        return sum(tensor.nbytes for tensor in calls[name]["prefill"]())

    with torch.no_grad():
        totals = {
            "parameters": {name: sum(p.numel() for p in model.parameters()) for name, (_, model) in models.items()},
            f"cache of {args.batch_size}x{args.length} (bytes)": {name: cache_bytes(name) for name in models},
        }
    peers = {
        name: [peer for peer in (first, f"{X_TRANSFORMERS} {order}") if peer in models and name not in (peer, first)]
        for name, (order, _) in models.items()
    }
    remark = REMARK if find_spec("x_transformers") else MISSING
    return Comparison(tasks(), peers, totals, remark if args.peer == "gpt2" else TODAY.format(peer=first))

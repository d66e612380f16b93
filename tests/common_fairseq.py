"""fairseq's models: random weights by its names, and what it computes from them, written out."""

import json
import math

import torch
from common import REFERENCE
from safetensors.torch import load_file
from torch.nn import functional
from torch.nn.functional import gelu

WIDTH = 16
HEADS = 4


def linear(name: str, rows: int, columns: int, bias: bool = True) -> dict[str, torch.Tensor]:
    weights = {f"{name}.weight": 0.3 * torch.randn(rows, columns)}
    return weights | ({f"{name}.bias": 0.3 * torch.randn(rows)} if bias else {})


def norm(name: str) -> dict[str, torch.Tensor]:
    return {f"{name}.weight": 1 + 0.3 * torch.randn(WIDTH), f"{name}.bias": 0.3 * torch.randn(WIDTH)}


def fairseq_stack(
    side: str,
    macaron: bool = False,
    norm_affine: bool = True,
    final_norm: bool = False,
    conv_rows: int = 0,
    kernels: tuple[str, ...] = ("s", "s"),
    crosses: bool = False,
) -> dict[str, torch.Tensor]:
    """Two layers of the encoder or the decoder; kernels are dynamic, lightweight or, where self-attention is, none.

    A decoder of an encoder-decoder `crosses` over to the encoder.
    """
    weights = linear(f"{side}.embed_tokens", 61, WIDTH, bias=False) | {f"{side}.version": torch.ones(1)}
    for i, kernel in enumerate(kernels):
        layer, norms = f"{side}.layers.{i}.", []
        if kernel == "s":
            joint = linear(f"{layer}self_attn.in_proj", 3 * WIDTH, WIDTH) | linear(
                f"{layer}self_attn.out_proj", WIDTH, WIDTH
            )
            weights |= {name.replace("in_proj.", "in_proj_"): tensor for name, tensor in joint.items()}
            norms.append("layer_norms.0" if side == "encoder" else "self_attn_layer_norm")
        else:
            weights |= linear(f"{layer}linear1", conv_rows, WIDTH) | linear(f"{layer}linear2", WIDTH, WIDTH)
            size = 3 + 2 * i
            if kernel == "d":
                weights |= linear(f"{layer}conv.weight_linear", HEADS * size, WIDTH, bias=False)
            else:
                weights[f"{layer}conv.weight"] = torch.randn(HEADS, 1, size)
            norms.append("layer_norms.0" if side == "encoder" else "conv_layer_norm")
        if crosses:
            for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
                weights |= linear(f"{layer}encoder_attn.{projection}", WIDTH, WIDTH)
            norms.append("encoder_attn_layer_norm")
        for half in ("", "macaron_") if macaron else ("",):
            weights |= linear(f"{layer}{half}fc1", 24, WIDTH) | linear(f"{layer}{half}fc2", WIDTH, 24)
        norms.append("layer_norms.1" if side == "encoder" else "final_layer_norm")
        if macaron:
            norms.append("layer_norms.2" if side == "encoder" else "macaron_layer_norm")
        for name in norms if norm_affine else ():
            weights |= norm(layer + name)
    return weights | (norm(f"{side}.layer_norm") if final_norm else {})


def translation_stacks(learned: bool = False, **options) -> dict[str, torch.Tensor]:
    """An encoder and a decoder with the same embeddings, and with learned positions or sinusoids."""
    weights = fairseq_stack("encoder", **options) | fairseq_stack("decoder", crosses=True, **options)
    for side in ("encoder", "decoder"):
        kind = {"weight": torch.randn(34, WIDTH)} if learned else {"_float_tensor": torch.ones(1)}
        weights |= {f"{side}.embed_positions.{name}": tensor for name, tensor in kind.items()}
    return weights | {"decoder.embed_tokens.weight": weights["encoder.embed_tokens.weight"].clone()}


def bert(head, macaron=True, norm_affine=False, final_norm=False, learned=False):
    """Random weights of the Macaron authors' BERT, with the head of pre-training or for so many classes."""
    weights = fairseq_stack("encoder", macaron, norm_affine, final_norm)
    weights["encoder.embed_segment.weight"] = torch.stack([torch.randn(WIDTH), torch.zeros(WIDTH)])
    if learned:
        weights["encoder.embed_positions.weight"] = torch.randn(34, WIDTH)
    if isinstance(head, int):
        return weights | linear("classifier", head, WIDTH)
    weights |= linear("mid_layer.0", WIDTH, WIDTH) | norm("mid_layer.2") | linear("classifier", 1, WIDTH)
    output = weights["encoder.embed_tokens.weight"] if head == "tied" else torch.randn(61, WIDTH)
    return weights | {"embed_out": output.clone()}


def language_model(final_norm=False, output=None):
    """Random weights of fairseq's language model; its output has the name that it has since 0.10 or had before."""
    weights = fairseq_stack("decoder", final_norm=final_norm)
    if output == "tied":
        weights["decoder.output_projection.weight"] = weights["decoder.embed_tokens.weight"].clone()
    elif output:
        weights[output] = torch.randn(61, WIDTH)
    return weights


def load_reference(name: str):
    """Weights of the authors' own code, what it computed from them, and with which settings."""
    weights, io = (load_file(REFERENCE / f"{name}.{kind}.safetensors") for kind in ("weights", "io"))
    return weights, io, json.loads((REFERENCE / f"{name}.json").read_text())


def search_as_fairseq(model, longest: int, **options):
    """Beams of up to so many tokens, and their scores, by fairseq's rules."""

    def allowed(row, ids):
        # fairseq never says padding, and at last says the end for what it costs; forced_eos_token_id is for free
        return [2] if len(ids) == longest else [0, *range(2, 33)]

    # fairseq's min_len
    lengths = {"min_new_tokens": 1, "max_new_tokens": longest, "early_stopping": True}
    lengths |= {"return_dict_in_generate": True, "output_scores": True}
    return model.generate(prefix_allowed_tokens_fn=allowed, **lengths, **options)


class NaiveFairseq:
    """Runs one row without padding, ids (length,), in 64 bits through the encoder or the decoder: (length, width)."""

    def __init__(self, weights, options):
        self.weights, self.options = {name: tensor.double() for name, tensor in weights.items()}, options
        self.heads = options.get("decoder_attention_heads", options.get("encoder_attention_heads", HEADS))
        self.act = {"relu": torch.relu, "gelu": gelu}[options.get("activation_fn", options.get("act_fn", "relu"))]

    def linear(self, x, name):
        return functional.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def norm(self, x, name):
        return functional.layer_norm(
            x, x.shape[-1:], self.weights.get(f"{name}.weight"), self.weights.get(f"{name}.bias")
        )

    def pre_norm(self, side):
        return self.options.get(f"{side}_normalize_before", True)

    def add(self, x, norm, mixer, scale=1.0):
        if self.pre_norm(norm.split(".")[0]):
            return x + scale * mixer(self.norm(x, norm))
        return self.norm(x + scale * mixer(x), norm)

    def project(self, x, name, number):
        if f"{name}.in_proj_weight" not in self.weights:
            return self.linear(x, f"{name}.{'qkv'[number]}_proj")
        weight, bias = (self.weights[f"{name}.in_proj_{kind}"].chunk(3)[number] for kind in ("weight", "bias"))
        return functional.linear(x, weight, bias)

    def attend(self, x, source, name, causal):
        sources = (x, source, source)
        q, k, v = (self.project(y, name, i).unflatten(-1, (self.heads, -1)) for i, y in enumerate(sources))
        scores = torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(q.shape[-1])
        if causal:
            scores = scores + torch.full(scores.shape[1:], -torch.inf).triu(1)
        return self.linear(torch.einsum("hij,jhd->ihd", scores.softmax(-1), v).flatten(1), f"{name}.out_proj")

    def convolve(self, x, layer, causal):
        x = self.linear(x, f"{layer}linear1")
        if x.shape[1] > self.weights[f"{layer}linear2.weight"].shape[1]:
            x = x.chunk(2, dim=1)[0] * x.chunk(2, dim=1)[1].sigmoid()
        if f"{layer}conv.weight" in self.weights:
            kernels = self.weights[f"{layer}conv.weight"][:, 0].expand(len(x), -1, -1)
        else:
            kernels = self.linear(x, f"{layer}conv.weight_linear").unflatten(1, (self.heads, -1))
        kernels, size, mixed = kernels.softmax(-1), kernels.shape[-1], []
        before = size - 1 if causal else (size - 1) // 2
        padded = functional.pad(x, (0, 0, before, size - 1 - before)).unflatten(1, (self.heads, -1))
        for i in range(len(x)):
            mixed.append(sum(kernels[i, :, k, None] * padded[i + k] for k in range(size)).flatten())
        return self.linear(torch.stack(mixed), f"{layer}linear2")

    def feed_forward(self, x, layer, act):
        return self.linear(act(self.linear(x, f"{layer}fc1")), f"{layer}fc2")

    def embed(self, side, ids):
        table = self.weights[f"{side}.embed_tokens.weight"]
        learned, half = self.weights.get(f"{side}.embed_positions.weight"), table.shape[1] // 2
        rates = torch.exp(torch.arange(half) * -math.log(10000) / (half - 1))
        # behind the padding index, 1
        angles = torch.arange(2, 2 + len(ids))[:, None] * rates
        positions = torch.cat([angles.sin(), angles.cos()], 1) if learned is None else learned[2 : 2 + len(ids)]
        return table[ids] * (1 if self.options.get("no_scale_embedding") else table.shape[1] ** 0.5) + positions

    def run(self, side, ids, source=None, segments=None):
        x, causal = self.embed(side, ids), side == "decoder"
        if segments is not None:
            x = x + self.weights["encoder.embed_segment.weight"][segments]
        number = 0
        while f"{side}.layers.{number}.fc1.weight" in self.weights:
            layer = f"{side}.layers.{number}."
            convolves, scale = f"{layer}linear1.weight" in self.weights, 1.0
            first, last = ("layer_norms.0", "layer_norms.1")
            if causal:
                first, last = ("conv_layer_norm" if convolves else "self_attn_layer_norm", "final_layer_norm")
            if f"{layer}macaron_fc1.weight" in self.weights:
                scale = 0.5
                # whatever comes behind attention, before it is ReLU
                x = self.add(
                    x,
                    layer + ("macaron_layer_norm" if causal else "layer_norms.2"),
                    lambda y, at=layer: self.feed_forward(y, f"{at}macaron_", torch.relu),
                    0.5,
                )
            if convolves:
                x = self.add(x, layer + first, lambda y, at=layer: self.convolve(y, at, causal))
            else:
                x = self.add(x, layer + first, lambda y, at=layer: self.attend(y, y, f"{at}self_attn", causal))
            if source is not None:
                cross = f"{layer}encoder_attn"
                x = self.add(x, f"{cross}_layer_norm", lambda y, at=cross: self.attend(y, source, at, False))
            x = self.add(x, layer + last, lambda y, at=layer: self.feed_forward(y, at, self.act), scale)
            number += 1
        # without gain and bias, norms are not among the weights
        affine = any("layer_norm" in name for name in self.weights)
        final_norm = f"{side}.layer_norm.weight" in self.weights if affine else self.pre_norm(side)
        return self.norm(x, f"{side}.layer_norm") if final_norm else x

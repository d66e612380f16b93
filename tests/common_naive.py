"""Networks written out from their weights, position by position."""

import math
from collections import defaultdict

import torch

from sublayers import Order
from sublayers.configuration.letters.recurrence import shape

ACTIVATIONS = {
    "relu": lambda x: x.clamp(min=0),
    "tanh": torch.tanh,
    "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
}


class NaiveNetwork:
    """Runs one stack on the states of one text, a list of vectors, and keeps what every sublayer made of them.

    A stack is the beginning of its weights' names, such as `model.encoder`.
    """

    def __init__(self, model):
        self.config, self.weights = model.config, dict(model.state_dict())
        self.heads = self.config.num_attention_heads
        self.hidden_states: dict[str, list] = defaultdict(list)
        # by stack and letter
        self.attentions: dict[str, list] = defaultdict(list)

    def affine(self, x, name):
        y = (self.weights[f"{name}.weight"] * x).sum(1)
        return y + self.weights[f"{name}.bias"] if f"{name}.bias" in self.weights else y

    def norm(self, x, name):
        x = x - x.mean()
        x = x / (x.square().mean() + self.config.layer_norm_eps).sqrt()
        if f"{name}.weight" not in self.weights:
            return x
        return x * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def look_up(self, stack, token):
        state = self.weights[f"{stack}.embed_tokens.weight"][token]
        return state * math.sqrt(self.config.hidden_size) if self.config.scale_embedding else state

    def embed(self, stack, position, token, segment=0):
        config, size = self.config, self.config.hidden_size
        position = position + config.position_offset
        if config.position_embedding_type == "learned":
            place = self.weights[f"{stack}.embed_positions.weight"][position]
        else:
            rates = [position / 10000 ** (i / (size // 2 - 1)) for i in range(size // 2)]
            place = torch.tensor([math.sin(rate) for rate in rates] + [math.cos(rate) for rate in rates])
        state = self.look_up(stack, token) + place + segment
        return self.norm(state, f"{stack}.embed_norm") if getattr(config, "embedding_norm", False) else state

    def run(self, stack, states, order, is_causal, first_order="", source=None):
        """The states behind the stack; its weights are numbered by the first of several orders."""
        config, pre, first = self.config, self.config.norm_position != "post", Order(first_order or order)
        numbers, order = Order(order).sublayers, Order(order).letters
        fixed: list = []
        for depth, letter in enumerate(order):
            place = numbers[depth]
            if order != first.letters:
                # its n-th `s` is the n-th `s` of the first order
                place = [i for i, other in enumerate(first) if other == letter][order[:depth].count(letter)]
            self.hidden_states[stack].append(torch.stack(states))
            name = f"{stack}.layers.{place}"
            inputs = [self.norm(x, f"{name}.norm") for x in states] if pre else states
            kind = config.pre_attention_act if order[depth + 1 : depth + 2] in ("s", "m") else None
            act = ACTIVATIONS[kind or config.hidden_act]
            if letter == "f":
                fc1, fc2 = f"{name}.mixer.fc1", f"{name}.mixer.fc2"
                outputs = [self.affine(act(self.affine(x, fc1)), fc2) for x in inputs]
            elif letter == "e":
                outputs = naive_experts(self.weights, f"{name}.mixer.", inputs, config, act)
            elif letter == "g":
                outputs = self.convolve(inputs, f"{name}.mixer", is_causal)
            else:
                if letter == "m":
                    fixed = fixed or states
                others = inputs if letter != "m" else [self.norm(x, f"{name}.norm") for x in fixed] if pre else fixed
                own = [self.seen(others, i) if is_causal else others for i in range(len(inputs))]
                seen = [source] * len(inputs) if letter == "c" else own
                outputs = self.attend(inputs, seen, name, f"{stack}.{'s' if letter == 'm' else letter}")
            if config.norm_position == "both":
                outputs = [self.norm(y, f"{name}.output_norm") for y in outputs]
            scale = config.feed_forward_scale if letter in "fe" else 1
            states = [x + scale * y for x, y in zip(states, outputs, strict=True)]
            if not pre:
                states = [self.norm(x, f"{name}.norm") for x in states]
        if config.final_norm:
            states = [self.norm(x, f"{stack}.norm") for x in states]
        self.hidden_states[stack].append(torch.stack(states))
        return states

    def convolve(self, inputs, name, is_causal):
        """A gated short convolution, position by position."""
        kernel = self.weights[f"{name}.kernel"]
        first, second, values = zip(*(self.affine(x, f"{name}.in_proj").chunk(3) for x in inputs), strict=True)
        outputs, before = [], kernel.shape[1] - 1 if is_causal else (kernel.shape[1] - 1) // 2
        for i, gate in enumerate(second):
            places = [(j, i + j - before) for j in range(kernel.shape[1]) if 0 <= i + j - before < len(inputs)]
            mixed = sum(kernel[:, j] * first[place] * values[place] for j, place in places)
            outputs.append(self.affine(gate * mixed, f"{name}.out_proj"))
        return outputs

    def seen(self, inputs, i):
        """What a position attends to, up to itself."""
        return inputs[: i + 1]

    def score(self, query, key, head, distance, name):
        return query[head] @ key[head]

    def attend(self, inputs, seen, name, kind):
        """Attention of every input to the states that it sees; its weights are kept, zeros for what is not seen."""
        if f"{name}.mixer.A_log" in self.weights:
            own = shape(self.config.sizes)
            return naive_recurrence(self.weights, f"{name}.mixer.", own, self.config.layer_norm_eps, inputs)
        outputs, weights = [], torch.zeros(self.heads, len(inputs), max(map(len, seen)))
        for i, (x, states) in enumerate(zip(inputs, seen, strict=True)):
            q = self.affine(x, f"{name}.mixer.q_proj").view(self.heads, -1)
            k, v = ([self.affine(y, f"{name}.mixer.{p}_proj").view(self.heads, -1) for y in states] for p in "kv")
            mixed = []
            for h in range(self.heads):
                scores = [self.score(q, key, h, len(k) - 1 - j, name) for j, key in enumerate(k)]
                if (table := self.weights.get(f"{name}.mixer.distance_proj.weight")) is not None:
                    farthest = len(table) // 2
                    near = [min(max(j - i, -farthest), farthest) for j in range(len(k))]
                    scores = [score + q[h] @ table[farthest + n] for score, n in zip(scores, near, strict=True)]
                scores = torch.stack(scores) / math.sqrt(len(q[h]))
                cap = self.config.attn_logit_softcapping
                shares = (scores if cap is None else cap * (scores / cap).tanh()).softmax(0)
                weights[h, i, : len(k)] = shares.detach()
                mixed.append(sum(p * value[h] for p, value in zip(shares, v, strict=True)))
            joined = torch.cat(mixed)
            if f"{name}.mixer.gate_proj.weight" in self.weights:
                joined = joined * self.affine(x, f"{name}.mixer.gate_proj").sigmoid()
            outputs.append(self.affine(joined, f"{name}.mixer.o_proj"))
        self.attentions[kind].append(weights)
        return outputs


class NaiveSeq2Seq(NaiveNetwork):
    """Scores of one target for one source: (length,), (length,) -> (length, vocabulary)."""

    def __call__(self, source, target):
        encoder_orders, decoder_orders = self.config.stack_orders
        chosen = self.choose("encoder", [self.look_up("model.encoder", token) for token in source])
        source = self.read("encoder", encoder_orders, chosen, source)
        states = self.read("decoder", decoder_orders, self.choose("decoder", source), target, source)
        logits = torch.stack(states) @ self.weights["lm_head.weight"].T
        return logits + self.weights["lm_head.bias"] if self.config.output_bias else logits

    def choose(self, side, states):
        """The place of the order with the highest score for the mean of some states, the first without predictor."""
        scores = self.weights.get(f"model.encoder.{side}_order_predictor.weight")
        return 0 if scores is None else int((scores @ (sum(states) / len(states))).argmax())

    def read(self, side, orders, chosen, ids, source=None):
        states = [self.embed(f"model.{side}", i, token) for i, token in enumerate(ids)]
        return self.run(f"model.{side}", states, orders[chosen], side == "decoder", orders[0], source)


def naive_experts(weights, name, states, config, act):
    """Route each of some tokens on its own, one expert at a time."""

    def run(gate, up, down, token):
        return down @ (act(gate @ token) * (up @ token))

    outputs = []
    for token in states:
        shares = (weights[f"{name}router.weight"] @ token).softmax(0)
        best = sorted(range(len(shares)), key=lambda i, shares=shares: -shares[i])[: config.num_experts_per_tok]
        total = torch.zeros_like(token)
        for i in best:
            gate, up = weights[f"{name}experts.gate_up_proj"][i].chunk(2)
            share = shares[i] / sum(shares[j] for j in best) if config.norm_topk_prob else shares[i]
            total = total + share * run(gate, up, weights[f"{name}experts.down_proj"][i], token)
        if config.shared_expert_intermediate_size:
            own = run(*(weights[f"{name}shared_expert.{part}_proj.weight"] for part in ("gate", "up", "down")), token)
            if config.shared_expert_gate:
                own = own * (weights[f"{name}shared_expert_gate.weight"] @ token).sigmoid()
            total = total + own
        outputs.append(total)
    return outputs


def naive_convolution(weights, name, inputs, heads, is_causal):
    """Sum what lies under each position's kernel, one position, head and place of the kernel at a time."""

    def linear(x, part):
        return (weights[f"{name}{part}.weight"] * x).sum(1) + weights[f"{name}{part}.bias"]

    gated = []
    for x in inputs:
        values, *gate = linear(x, "in_proj").split(len(x))
        gated.append(values / (1 + (-gate[0]).exp()) if gate else values)
    weight = weights[f"{name}weight_proj.weight"]
    is_dynamic = weight.shape[1] > 1
    outputs = []
    for i, x in enumerate(gated):
        kernels = ((weight * x).sum(1) if is_dynamic else weight[:, 0]).view(heads, -1).exp()
        width = kernels.shape[1]
        first = i - (width - 1 if is_causal else (width - 1) // 2)
        mixed = []
        for h in range(heads):
            under = [(k, gated[first + k].view(heads, -1)[h]) for k in range(width) if 0 <= first + k < len(gated)]
            mixed.append(sum(kernels[h, k] / kernels[h].sum() * values for k, values in under))
        outputs.append(linear(torch.cat(mixed), "out_proj"))
    return outputs


def naive_recurrence(weights, name, own, eps, inputs, least_step=0.0, largest_rate=1.0):
    """Read one text token by token, each head with a matrix of its own."""
    weights = {key.removeprefix(name): value for key, value in weights.items() if key.startswith(name)}
    outputs, pairs = [], own.groups * own.state_size
    window = torch.zeros(own.conv_kernel, own.channels).type_as(inputs[0])
    matrices = torch.zeros(own.heads, own.state_size, own.head_dim).type_as(inputs[0])
    for x in inputs:
        sizes = [own.width, own.channels, *[own.heads] * (1 + own.is_delta)]
        gate, channels, *numbers = (weights["in_proj.weight"] @ x).split(sizes)
        gate = gate / (1 + (-gate).exp())
        window = torch.cat([window[1:], channels[None]])
        channels = (window * weights["conv1d.weight"][:, 0].T).sum(0) + weights.get("conv1d.bias", 0)
        value, key, query = (channels / (1 + (-channels).exp())).split([own.width, pairs, pairs])
        mixed = []
        for h in range(own.heads):
            v = value[h * own.head_dim : (h + 1) * own.head_dim]
            group = h // (own.heads // own.groups)
            k, q = (x[group * own.state_size : (group + 1) * own.state_size] for x in (key, query))
            step = (1 + (numbers[0][h] + weights["dt_bias"][h]).exp()).log().clamp(min=least_step)
            matrix = matrices[h] * (-weights["A_log"][h].exp() * step).exp()
            if own.is_delta:
                k, q = (x / (x.square().sum() + 1e-6).sqrt() for x in (k, q))
                rate = largest_rate / (1 + (-numbers[1][h]).exp())
                matrix = matrix + rate * torch.outer(k, v - k @ matrix)
                read = q @ matrix / own.state_size**0.5
                mixed.append(read / (read.square().mean() + eps).sqrt() * weights["norm.weight"])
            else:
                matrix = matrix + step * torch.outer(k, v)
                mixed.append(q @ matrix + weights["D"][h] * v)
            matrices = torch.cat([matrices[:h], matrix[None], matrices[h + 1 :]])
        mixed = torch.cat(mixed) * gate
        if not own.is_delta:
            rows = mixed.view(own.groups, -1)
            mixed = (rows / (rows.square().mean(1, keepdim=True) + eps).sqrt()).flatten() * weights["norm.weight"]
        outputs.append(weights["out_proj.weight"] @ mixed)
    return outputs


class NaiveWithConvolutions(NaiveSeq2Seq):
    def attend(self, inputs, seen, name, kind):
        if f"{name}.mixer.in_proj.weight" not in self.weights:
            return super().attend(inputs, seen, name, kind)
        return naive_convolution(self.weights, f"{name}.mixer.", inputs, self.heads, ".decoder." in name)

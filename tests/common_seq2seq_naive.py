"""Encoder-decoders written out from their weights, position by position."""

import math

import torch

from sublayers import expand

ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh}


class NaiveSeq2Seq:
    """Scores of one target for one source, (length,), (length,) -> (length, vocabulary), and all that led to them."""

    def __init__(self, model):
        self.config, self.weights = model.config, dict(model.state_dict())
        self.heads = self.config.num_attention_heads
        self.attentions: dict[str, list] = {"encoder.s": [], "decoder.s": [], "decoder.c": []}
        self.hidden_states: dict[str, list] = {"encoder": [], "decoder": []}

    def __call__(self, source, target):
        encoder_orders, decoder_orders = self.config.stack_orders
        chosen = self.choose("encoder", [self.look_up("encoder", token) for token in source])
        source = self.run("encoder", encoder_orders, chosen, source)
        states = self.run("decoder", decoder_orders, self.choose("decoder", source), target, source)
        logits = torch.stack(states) @ self.weights["lm_head.weight"].T
        return logits + self.weights["lm_head.bias"] if self.config.output_bias else logits

    def choose(self, stack, states):
        """The place of the order with the highest score for the mean of some states, the first without predictor."""
        scores = self.weights.get(f"model.encoder.{stack}_order_predictor.weight")
        return 0 if scores is None else int((scores @ (sum(states) / len(states))).argmax())

    def affine(self, x, name):
        return (self.weights[f"{name}.weight"] * x).sum(1) + self.weights[f"{name}.bias"]

    def norm(self, x, name):
        x = x - x.mean()
        x = x / (x.square().mean() + 1e-5).sqrt()
        if f"{name}.weight" not in self.weights:
            return x
        return x * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def look_up(self, stack, token):
        state = self.weights[f"model.{stack}.embed_tokens.weight"][token]
        return state * math.sqrt(self.config.hidden_size) if self.config.scale_embedding else state

    def embed(self, stack, position, token):
        config, size = self.config, self.config.hidden_size
        state = self.look_up(stack, token)
        position = position + config.position_offset
        if config.position_embedding_type == "learned":
            state = state + self.weights[f"model.{stack}.embed_positions.weight"][position]
        else:
            rates = [position / 10000 ** (i / (size // 2 - 1)) for i in range(size // 2)]
            state = state + torch.tensor([math.sin(rate) for rate in rates] + [math.cos(rate) for rate in rates])
        return self.norm(state, f"model.{stack}.embed_norm") if config.embedding_norm else state

    def run(self, stack, orders, chosen, ids, source=None):
        pre = self.config.norm_position == "pre"
        first, order = expand(orders[0]), expand(orders[chosen])
        states = [self.embed(stack, i, token) for i, token in enumerate(ids)]
        for depth, letter in enumerate(order):
            # its n-th `s` is the n-th `s` of the first order
            place = [i for i, other in enumerate(first) if other == letter][order[:depth].count(letter)]
            self.hidden_states[stack].append(torch.stack(states))
            name = f"model.{stack}.layers.{place}"
            inputs = [self.norm(x, f"{name}.norm") for x in states] if pre else states
            scale = 1.0
            if letter == "f":
                scale = self.config.feed_forward_scale
                kind = self.config.pre_attention_act if order[depth + 1 : depth + 2] == "s" else None
                act = ACTIVATIONS[kind or self.config.hidden_act]
                outputs = [self.affine(act(self.affine(x, f"{name}.mixer.fc1")), f"{name}.mixer.fc2") for x in inputs]
            elif letter == "s":
                seen = [inputs[: i + 1] if stack == "decoder" else inputs for i in range(len(inputs))]
                outputs = self.attend(inputs, seen, name, f"{stack}.s")
            else:
                outputs = self.attend(inputs, [source] * len(inputs), name, f"{stack}.c")
            states = [x + scale * y for x, y in zip(states, outputs, strict=True)]
            if not pre:
                states = [self.norm(x, f"{name}.norm") for x in states]
        if self.config.final_norm:
            states = [self.norm(x, f"model.{stack}.norm") for x in states]
        self.hidden_states[stack].append(torch.stack(states))
        return states

    def attend(self, inputs, seen, name, kind):
        """Attention of every input to the states that it sees; its weights are kept, zeros for what is not seen."""
        outputs, weights = [], torch.zeros(self.heads, len(inputs), max(map(len, seen)))
        for i, (x, keys) in enumerate(zip(inputs, seen, strict=True)):
            q = self.affine(x, f"{name}.mixer.q_proj").view(self.heads, -1)
            k, v = ([self.affine(y, f"{name}.mixer.{p}_proj").view(self.heads, -1) for y in keys] for p in ("k", "v"))
            mixed = []
            for h in range(self.heads):
                scores = torch.stack([q[h] @ key[h] / math.sqrt(len(key[h])) for key in k]).softmax(0)
                weights[h, i, : len(keys)] = scores.detach()
                mixed.append(sum(p * value[h] for p, value in zip(scores, v, strict=True)))
            outputs.append(self.affine(torch.cat(mixed), f"{name}.mixer.o_proj"))
        self.attentions[kind].append(weights)
        return outputs

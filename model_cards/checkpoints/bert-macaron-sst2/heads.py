"""What the task heads of all families share: reading the body's output where it is wanted."""

from typing import Any

import torch
from torch import nn
from transformers import Cache, GenerationMixin
from transformers.modeling_outputs import SequenceClassifierOutputWithPast
from transformers.utils.generic import can_return_tuple

from .embeddings import check_tokens
from .losses import classification_loss
from .modeling_sublayers import SublayersPreTrainedModel
from .plan import Plan


class CheckedGenerationMixin(GenerationMixin):
    """Generation that says what is wrong with an empty prompt, the last token of which transformers looks at."""

    config: Any

    def generate(self, inputs: torch.Tensor | None = None, *args, **kwargs) -> Any:  # type: ignore[override]
        """Generate as transformers does.

        Raises:
            ValueError: a prompt (batch, length) has no token.
        """
        name, prompt, first = "input_ids", kwargs.get("input_ids", inputs), "bos_token_id"
        if self.config.is_encoder_decoder:
            name, prompt, first = "decoder_input_ids", kwargs.get("decoder_input_ids"), "decoder_start_token_id"
        if prompt is not None and 0 in prompt.shape:
            raise ValueError(
                f"{name} of shape {(*prompt.shape,)} hold no token to go on from; leave them out to begin with "
                f"{first}, or give each row one token"
            )
        return super().generate(inputs, *args, **kwargs)  # type: ignore[misc]

    def init_continuous_batching(self, *args, **kwargs) -> Any:
        """Prepare continuous batching as transformers does.

        Raises:
            ValueError: some sublayers keep a state of fixed size, for which it has no place.
        """
        kinds = {place for order in self.config.orders.values() for place in zip(order, order.kinds, strict=True)}
        if stateful := sorted(letter for letter, kind in kinds if kind.keeps_state):
            raise ValueError(
                f"continuous batching keeps no states, but sublayers {', '.join(stateful)} do; call generate instead"
            )
        return super().init_continuous_batching(*args, **kwargs)  # type: ignore[misc]

    def prepare_inputs_for_generation(
        self, input_ids: torch.Tensor, *args, tokenizer: Any = None, **kwargs
    ) -> dict[str, Any]:
        """Prepare inputs as transformers does, without the tokenizer that beam search hands on."""
        return super().prepare_inputs_for_generation(input_ids, *args, **kwargs)  # type: ignore[misc]


def positions_to_read(logits_to_keep: int | torch.Tensor, length: int, device) -> torch.Tensor | None:
    """Turn transformers' `logits_to_keep` into positions (batch or 1, kept), or None where all of them are needed.

    An integer keeps the last positions (0: all), a 1-D tensor the same ones in each row, a 2-D tensor of integers each
    row its own. A 2-D boolean mask, which may keep a different number in each row, stays as it is.
    """
    if isinstance(logits_to_keep, int):
        if not 0 < logits_to_keep < length:
            return None
        return torch.arange(length - logits_to_keep, length, device=device)[None]
    if logits_to_keep.dtype == torch.bool:
        return (logits_to_keep if logits_to_keep.ndim == 2 else logits_to_keep.nonzero().T).to(device)
    positions = torch.atleast_2d(logits_to_keep).to(device, torch.long)
    # onnx has no remainder by a length that is not known
    return torch.where(positions < 0, positions + length, positions)


def run_and_read(body, logits_to_keep: int | torch.Tensor, **inputs):
    """Run a body and return its hidden states at `logits_to_keep`, and all its outputs.

    The states are (batch, kept, hidden), or (kept in all, hidden) for a 2-D boolean mask. Positions that are not kept
    skip the sublayers that only they would read, unless the caller asks for all hidden states or attention weights.
    """
    tokens = check_tokens(inputs["input_ids"], inputs["inputs_embeds"])
    read = positions_to_read(logits_to_keep, tokens.shape[1], tokens.device)
    plan = Plan.of(tokens, inputs["attention_mask"], read, body.is_recorded(**inputs))
    return run_planned(body, plan, **inputs)


def run_planned(body, plan: Plan, **inputs):
    """Run a body as planned, and return the hidden states that are read, and all its outputs."""
    outputs = body(plan=plan, return_dict=True, **inputs)
    return plan.select(outputs.last_hidden_state), outputs


def first_tokens(tokens: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
    """Find each row's first token that is not padding: (batch or 1, 1)."""
    if attention_mask is None or attention_mask.ndim != 2:
        return torch.zeros(1, 1, dtype=torch.long, device=tokens.device)
    return attention_mask.int().argmax(dim=1, keepdim=True)


def last_tokens(
    tokens: torch.Tensor, attention_mask: torch.Tensor | None, pad_token_id: int | None
) -> torch.Tensor | int:
    """Find each row's last token that is not padding: (batch, 1), or 1, the last place, for a single row.

    `tokens` are ids (batch, length), in which padding shows, or embeddings (batch, length, hidden).

    Raises:
        ValueError: several rows, but nothing that tells padding from tokens.
    """
    batch, length = tokens.shape[:2]
    if attention_mask is not None:
        real = attention_mask.bool()
    elif tokens.ndim == 2 and pad_token_id is not None:
        real = tokens != pad_token_id
    elif batch == 1:
        return 1
    else:
        raise ValueError(f"cannot tell where each of {batch} rows ends; pass an attention_mask or set pad_token_id")
    return torch.where(real, torch.arange(length, device=real.device), 0).argmax(dim=1, keepdim=True)


class LastTokenClassifier(SublayersPreTrainedModel):
    """What heads that read labels off the last token of each row share: (batch, length) -> (batch, labels).

    A family makes `model` and the map `score`.
    """

    model: nn.Module
    score: nn.Module

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs,
    ) -> SequenceClassifierOutputWithPast:
        """Classify: class ids (batch), several labels (batch, labels) or numbers, by `config.problem_type`."""
        tokens = check_tokens(input_ids, inputs_embeds, attention_mask)
        states, outputs = run_and_read(
            self.model,
            last_tokens(tokens, attention_mask, self.config.pad_token_id),
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache,
            inputs_embeds=inputs_embeds,
            # nothing continues a classified text, and keys of tokens that nobody reads need not be there
            use_cache=bool(use_cache),
            **kwargs,
        )
        logits = self.score(states[:, -1])
        loss = None if labels is None else classification_loss(logits, labels, self.config, num_items_in_batch)
        return SequenceClassifierOutputWithPast(
            loss=loss,
            logits=logits,
            cache=outputs.cache,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

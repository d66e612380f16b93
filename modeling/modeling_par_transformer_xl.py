"""Transformer-XL over any order of self-attention and feed-forward sublayers.

Mandava, Migacz and Florea (2020), "Pay Attention when Required", and Dai et al. (2019), "Transformer-XL: Attentive
Language Models beyond a Fixed-Length Context".
"""

from typing import Any

import torch
from torch import nn
from transformers import initialization as init

from sublayers.configuration.configuration_par_transformer_xl import PARTransformerXLConfig
from sublayers.modeling.adaptive import resize_bands
from sublayers.modeling.heads import LastTokenClassifier
from sublayers.modeling.memory import may_have_gaps
from sublayers.modeling.modeling_recurrent_lm import (
    RecurrentLMForCausalLM,
    RecurrentLMModel,
    RecurrentLMPreTrainedModel,
)
from sublayers.modeling.projected_adaptive import (
    ProjectedBand,
    ProjectedEmbedding,
    ProjectedLogSoftmax,
    ProjectedTail,
    tied,
)
from sublayers.modeling.relative_attention import HIDDEN, RelativeAttention, RelativePositions


class PARTransformerXLPreTrainedModel(RecurrentLMPreTrainedModel):
    """Base of the Transformer-XL models."""

    config: PARTransformerXLConfig

    def resize_token_embeddings(self, new_num_tokens=None, pad_to_multiple_of=None, mean_resizing=True):
        """Resize the last band, and with it the vocabulary. Raises what `resize_bands` raises."""
        return resize_bands(self, new_num_tokens, pad_to_multiple_of, mean_resizing)

    def _init_weights(self, module):
        super()._init_weights(module)
        spread = self.config.initializer_range
        if isinstance(module, nn.LayerNorm) and module.weight is not None:
            init.normal_(module.weight, 1.0, spread)
        elif isinstance(module, RelativePositions | RelativeAttention) and module.content_bias is not None:
            for vectors in (module.content_bias, module.position_bias):
                init.normal_(vectors, std=spread)  # type: ignore[arg-type]
        elif isinstance(module, ProjectedBand | ProjectedTail | ProjectedEmbedding | ProjectedLogSoftmax):
            for name, parameter in module.named_parameters(recurse=False):
                if name == "projection":
                    init.normal_(parameter, std=self.config.projection_initializer_range)
                elif name.endswith("bias"):
                    init.zeros_(parameter)
                else:
                    init.normal_(parameter, std=spread)


class PARTransformerXLModel(PARTransformerXLPreTrainedModel, RecurrentLMModel):
    """The body of the Transformer-XL models."""

    def __init__(self, config: PARTransformerXLConfig):
        super().__init__(config)
        self.embed_tokens = ProjectedEmbedding(config)
        self.positions = RelativePositions(config)
        self.build_stack()
        self.post_init()

    def attention_inputs(
        self,
        states: torch.Tensor,
        past_length: int,
        num_keys: int,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor | None,
    ) -> dict[str, Any]:
        """Embed the distances, and say which keys each query sees."""
        length = states.shape[1]
        seen = None
        numbers = torch.arange(num_keys, device=states.device)[None]
        own = numbers[:, :length] + past_length
        if attention_mask is not None and attention_mask.ndim == 2:
            # of the past, what is still there, and nothing of what is not there yet
            seen = attention_mask.bool()[:, -(past_length + length) :]
            seen = nn.functional.pad(seen, (0, num_keys - seen.shape[1]))
        has_gaps = seen is not None and may_have_gaps(seen)
        if seen is not None and has_gaps:
            # padding is no distance
            numbers = seen.long().cumsum(1)
            own = numbers[:, past_length : past_length + length]
        distances = (own[..., None] - numbers[:, None])[:, None]
        visible = distances >= 0
        if self.config.same_length and self.config.memory_length:
            visible = visible & (distances < self.config.memory_length)
        if seen is not None:
            visible = visible & seen[:, None, None]
        elif attention_mask is not None:
            visible = visible & (attention_mask if attention_mask.dtype == torch.bool else attention_mask >= 0)
        elif position_ids is not None and not past_length and position_ids.shape[1] == num_keys == length:
            # numbers that restart mark texts behind each other
            text = (position_ids[:, 1:] != position_ids[:, :-1] + 1).cumsum(1)
            text = nn.functional.pad(text, (1, 0))
            visible = visible & (text[:, None, :, None] == text[:, None, None, :])
        return {
            # one more than there are, for shift_rows
            "distances": self.positions(past_length + length, 1 + num_keys, states),
            "columns": past_length + length - distances.clamp(min=0) if has_gaps else None,
            "hidden_keys": torch.zeros_like(visible, dtype=states.dtype).masked_fill(~visible, HIDDEN),
            "content_bias": self.positions.content_bias,
            "position_bias": self.positions.position_bias,
        }


class PARTransformerXLForCausalLM(PARTransformerXLPreTrainedModel, RecurrentLMForCausalLM):
    """The language model: (batch, length) -> (batch, length, vocabulary).

    Its logits are log-probabilities; in training with labels there are none, only the loss.
    """

    def __init__(self, config: PARTransformerXLConfig):
        super().__init__(config)
        self.model = PARTransformerXLModel(config)
        self.lm_head = ProjectedLogSoftmax(config)
        self._tied_weights_keys = tied(config, "model.embed_tokens", "lm_head")
        self.post_init()

    def score(
        self, states: torch.Tensor, labels: torch.Tensor | None, **kwargs
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Score all words, or in training only as many as the loss needs."""
        logits = None if self.training and labels is not None else self.lm_head(states)
        loss = None if labels is None else self.lm_head(states, labels, kwargs.get("num_items_in_batch"))
        return logits, loss


class PARTransformerXLForSequenceClassification(LastTokenClassifier, PARTransformerXLPreTrainedModel):
    """Transformer-XL that labels texts."""

    def __init__(self, config: PARTransformerXLConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = PARTransformerXLModel(config)
        self.score = nn.Linear(config.hidden_size, config.num_labels, bias=False)  # type: ignore[arg-type]
        self.post_init()

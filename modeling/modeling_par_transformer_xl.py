"""Transformer-XL over any order of self-attention and feed-forward sublayers.

Mandava, Migacz and Florea (2020), "Pay Attention when Required", and Dai et al. (2019), "Transformer-XL: Attentive
Language Models beyond a Fixed-Length Context".
"""

import torch
from torch import nn
from transformers import initialization as init

from sublayers.configuration.configuration_par_transformer_xl import PARTransformerXLConfig
from sublayers.modeling.adaptive import resize_bands
from sublayers.modeling.heads import LastTokenClassifier
from sublayers.modeling.mixers.relative_attention import RelativeAttention, RelativePositions
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
        super().__init__(config, ProjectedEmbedding(config))
        self.post_init()


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
        self, states: torch.Tensor, labels: torch.Tensor | None, num_items_in_batch: torch.Tensor | int | None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Score all words, or in training only as many as the loss needs."""
        logits = None if self.training and labels is not None else self.lm_head(states)
        loss = None if labels is None else self.lm_head(states, labels, num_items_in_batch)
        return logits, loss


class PARTransformerXLForSequenceClassification(PARTransformerXLPreTrainedModel, LastTokenClassifier):
    """Transformer-XL that labels texts."""

    def __init__(self, config: PARTransformerXLConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = PARTransformerXLModel(config)
        self.score = nn.Linear(config.hidden_size, config.num_labels, bias=False)  # type: ignore[arg-type]
        self.post_init()

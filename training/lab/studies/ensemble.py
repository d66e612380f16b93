"""Several encoder-decoders that write one text."""

import math
from typing import Any

import torch
from torch import nn
from transformers import EncoderDecoderCache, GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from sublayers.modeling.modeling_reordered_seq2seq import ReorderedSeq2SeqPreTrainedModel

# one cache for each member, each as that member made it
Caches = tuple[EncoderDecoderCache, ...]


class Seq2SeqEnsemble(ReorderedSeq2SeqPreTrainedModel, GenerationMixin):
    """The mean of the probabilities that encoder-decoders give each next token, as fairseq's ensembles take it.

    Each member has its own encoder states and cache, and so the order that its own predictor chooses for a sentence.

    Args:
        members: models with a head of this library and the same target vocabulary; the first decides on special tokens
            and generation settings.
    """

    def __init__(self, members: list[PreTrainedModel]):
        super().__init__(members[0].config)
        self.members: Any = nn.ModuleList(members)
        self.generation_config = members[0].generation_config
        self.eval()

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        # each member makes its own at the first token
        return False

    @torch.no_grad()
    def generate(  # type: ignore[override]
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **options
    ) -> Any:
        """Write a text for each source (batch, length), with transformers' options: (batch, target length)."""
        states = [member.get_encoder()(input_ids, attention_mask=attention_mask) for member in self.members]
        return super().generate(  # type: ignore[misc]
            input_ids, attention_mask=attention_mask, encoder_outputs=states, **options
        )

    def forward(
        self,
        attention_mask: torch.Tensor | None = None,
        encoder_outputs: list[BaseModelOutput] | None = None,
        cache: Caches | None = None,
        inputs: list[dict[str, Any]] | None = None,
        **kwargs,
    ) -> Seq2SeqLMOutput:
        """Score the next tokens with every member's own `inputs`, which are made from the rest."""
        outputs = [member(**own, **kwargs) for member, own in zip(self.members, inputs or [], strict=True)]
        scores = torch.stack([output.logits.float().log_softmax(-1) for output in outputs])
        caches: Any = tuple(output.cache for output in outputs)
        return Seq2SeqLMOutput(
            logits=scores.logsumexp(0) - math.log(len(outputs)), cache=None if None in caches else caches
        )

    def prepare_inputs_for_generation(  # type: ignore[override]
        self, input_ids, *args, encoder_outputs=None, cache=None, **kwargs
    ) -> dict[str, Any]:
        """Let each member prepare its inputs from its own encoder states and cache."""
        caches = cache or [None] * len(self.members)
        own = zip(self.members, encoder_outputs, caches, strict=True)
        return {
            "inputs": [
                member.prepare_inputs_for_generation(input_ids, *args, encoder_outputs=states, cache=cache, **kwargs)
                for member, states, cache in own
            ]
        }

    def _expand_inputs_for_generation(self, *args, **kwargs):  # type: ignore[misc]
        # all leave encoder states at one row per source
        return self.members[0]._expand_inputs_for_generation(*args, **kwargs)

    def _reorder_cache(self, cache: Caches, beam_idx: torch.LongTensor) -> Caches:
        pairs = zip(self.members, cache, strict=True)
        return tuple(member._reorder_cache(cache, beam_idx) for member, cache in pairs)

from .versions import TRANSFORMERS  # noqa: F401

"""The sandwich language model: a causal decoder over any order of self-attention and feed-forward sublayers.

Press, Smith and Levy (2020), "Improving Transformer Models by Reordering their Sublayers".
"""

from typing import Any

import torch
from torch import nn
from transformers import Cache, initialization as init
from transformers.modeling_outputs import (
    BaseModelOutputWithPast,
    CausalLMOutputWithPast,
)
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .configuration_sandwich_lm import SandwichLMConfig
from .adaptive import AdaptiveBand, AdaptiveEmbedding, AdaptiveLogSoftmax, resize_bands
from .body import Body
from .embeddings import check_tokens
from .heads import (
    CheckedGenerationMixin,
    LastTokenClassifier,
    last_tokens,
    run_and_read,
)
from .losses import IGNORED, check_labels
from .mixers_attention import takes_single_queries
from .modeling_sublayers import SublayersPreTrainedModel
from .plan import Plan
from .shared_prefix import Divided, divide


class SandwichLMPreTrainedModel(SublayersPreTrainedModel):
    """Base of the sandwich language models."""

    config: SandwichLMConfig

    def resize_token_embeddings(self, new_num_tokens=None, pad_to_multiple_of=None, mean_resizing=True):
        """Resize the vocabulary as transformers does or, where there are bands, as `resize_bands` does."""
        if self.config.adaptive_cutoffs is None:
            return super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        return resize_bands(self, new_num_tokens, pad_to_multiple_of, mean_resizing)

    def _init_weights(self, module):
        super()._init_weights(module)
        if isinstance(module, AdaptiveBand):
            # as fairseq does: multiplied by sqrt(hidden), embeddings are about as large as the sinusoids
            init.normal_(module.table, std=module.table.shape[1] ** -0.5)
            init.xavier_uniform_(module.projection)
        elif isinstance(module, AdaptiveLogSoftmax):
            init.normal_(module.words, std=module.words.shape[1] ** -0.5)


class SandwichLMModel(SandwichLMPreTrainedModel, Body):
    """Token ids to hidden states: (batch, length) -> (batch, length, hidden)."""

    def __init__(self, config: SandwichLMConfig):
        adaptive = config.adaptive_cutoffs is not None
        words = AdaptiveEmbedding(config) if adaptive else nn.Embedding(config.vocab_size, config.hidden_size)
        super().__init__(config, [config.order], is_causal=True, embed_tokens=words)
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        plan: Plan | None = None,
        **kwargs,
    ) -> BaseModelOutputWithPast:
        """Run the stack; a plan restricts the output to the positions that are read.

        Where that is one in each row, without a cache and without gradients, tokens with which all rows begin are
        computed once.

        Raises:
            ValueError: neither or both of `input_ids` and `inputs_embeds`, ids outside the vocabulary, or a sequence
                longer than `max_position_embeddings`.
        """
        tokens = check_tokens(input_ids, inputs_embeds, attention_mask, cache)
        if plan is not None and not use_cache and not torch.is_grad_enabled() and takes_single_queries(self.config):
            is_plain = inputs_embeds is None and position_ids is None and cache is None and "routing" not in kwargs
            if is_plain and (divided := divide(tokens, attention_mask, plan)):
                return self.run_divided(divided)
        if inputs_embeds is None:
            inputs_embeds = self.look_up_tokens(tokens)
        if use_cache and cache is None and not self.training:
            cache = self.new_cache()
        plan = plan or Plan.of(tokens, attention_mask, is_recorded=self.is_recorded(**kwargs))
        batch = self.batch(inputs_embeds, plan, attention_mask, position_ids, cache)
        hidden_states = self.layers(self.embed(batch), batch, **kwargs)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(hidden_states), cache=cache if use_cache else None)

    def run_divided(self, divided: Divided) -> BaseModelOutputWithPast:
        """Run the prefix of a batch once, and the rests after it: the states that are read, (batch, 1, hidden)."""
        cache = self.new_cache()
        last = torch.tensor([[divided.prefix.shape[1] - 1]], device=divided.prefix.device)
        self(divided.prefix, cache=cache, use_cache=True, plan=Plan.of(divided.prefix, read=last))
        # states have no other way to become several
        first: Any = divided.rest.new_zeros(len(divided.rest))
        cache.reorder_cache(first)
        plan = Plan.of(divided.rest, divided.attention_mask, divided.read)
        return self(divided.rest, divided.attention_mask, cache=cache, use_cache=False, plan=plan)

    def forward_last_token(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs,
    ) -> BaseModelOutputWithPast:
        """Run for each row's last token that is not padding, all that pooling by it reads: (batch, 1, hidden).

        Raises what `forward` raises, and ValueError where the end of a row is not known.
        """
        tokens = check_tokens(input_ids, inputs_embeds, attention_mask)
        states, outputs = run_and_read(
            self,
            last_tokens(tokens, attention_mask, self.config.pad_token_id),
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **{**kwargs, "use_cache": False},
        )
        outputs.last_hidden_state = states
        return outputs


class SandwichLMForCausalLM(SandwichLMPreTrainedModel, CheckedGenerationMixin):
    """The language model: (batch, length) -> (batch, length, vocabulary).

    With `adaptive_cutoffs` its logits are log-probabilities; in training with labels there are none, only the loss.
    """

    loss_keywords = ("shift_labels",)
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}
    lm_head: nn.Module

    def __init__(self, config: SandwichLMConfig):
        super().__init__(config)
        self.model = SandwichLMModel(config)
        if config.adaptive_cutoffs is None:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
            self.post_init()
        else:
            self.lm_head = AdaptiveLogSoftmax(config)
            self._tied_weights_keys = {"lm_head.words": "model.embed_tokens.0.table"} | {
                f"lm_head.tails.{i}.{name}": f"model.embed_tokens.{i + 1}.{name}"
                for i in range(len(config.adaptive_cutoffs))
                for name in ("table", "projection")
            }
            self.post_init()
            # every process has all of it
            del self._tp_plan["lm_head"]

    def compute_logits(self, states: torch.Tensor) -> torch.Tensor:
        """Score the next token: (..., hidden) -> (..., vocabulary)."""
        logits = self.lm_head(states)
        cap = self.config.final_logit_softcapping
        return logits if cap is None else torch.tanh(logits / cap) * cap

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
        logits_to_keep: int | torch.Tensor = 0,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs,
    ) -> CausalLMOutputWithPast:
        """Score the next token at each position that `logits_to_keep` keeps; only those run the feed-forward tail.

        Labels are the tokens themselves. With `shift_labels` they are, at each position, the token that follows.
        """
        shift_labels = kwargs.pop("shift_labels", None)
        hidden_states, outputs = run_and_read(
            self.model,
            logits_to_keep,
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        loss = logits = None
        adaptive = self.config.adaptive_cutoffs is not None
        if shift_labels is None and labels is not None:
            shift_labels = nn.functional.pad(labels, (0, 1), value=IGNORED)[..., 1:].contiguous()
        # an adaptive softmax is there to save them
        if shift_labels is None or not (adaptive and self.training):
            logits = self.compute_logits(hidden_states)
        if shift_labels is not None:
            check_labels(shift_labels, hidden_states)
            if adaptive:
                loss = self.lm_head(hidden_states, shift_labels, num_items_in_batch)
            else:
                loss = self.loss_function(
                    logits=logits,
                    labels=None,
                    shift_labels=shift_labels,
                    vocab_size=self.config.vocab_size,
                    num_items_in_batch=num_items_in_batch,
                )
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            cache=outputs.cache,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class SandwichLMForSequenceClassification(SandwichLMPreTrainedModel, LastTokenClassifier):
    """Labels read off the last token of each row: (batch, length) -> (batch, labels)."""

    def __init__(self, config: SandwichLMConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = SandwichLMModel(config)
        self.score = nn.Linear(config.hidden_size, config.num_labels, bias=False)  # type: ignore[arg-type]
        self.post_init()


# transformers copies the files that a saved module imports; these lines name the whole family
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .configuration_sandwich_lm import SandwichLMConfig

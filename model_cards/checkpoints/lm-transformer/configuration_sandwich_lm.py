from .versions import TRANSFORMERS  # noqa: F401

"""Configuration of the sandwich language model."""

from .adaptive_bands import check_cutoffs, divide
from .configuration_sublayers import SublayersConfig
from .field_values import number, strict
from .letters_letter import Sizes


@strict
class SandwichLMConfig(SublayersConfig):
    """A causal language model over self-attention and feed-forward sublayers in any order.

    The defaults are the model of Press, Smith and Levy (2020), section 5.1: the pre-norm decoder of Baevski and Auli
    with sinusoidal positions, scaled embeddings tied to the output, no norm after the last sublayer and, as in the
    released code, 8 heads. Their word-level model, section 3, has a vocabulary of 267,744 words and
    `adaptive_cutoffs=[20000, 60000]`.

    Raises:
        ValueError: cutoffs that do not increase from above 0, a width that cannot be divided for every band, or what
            every configuration refuses.
    """

    model_type = "sandwich_lm"

    sublayer_order: str = "s6(sf)10f6"
    dropout: float | int = 0.3
    # ids, sorted by frequency, at which bands of rarer words begin (Baevski and Auli 2019, section 3); None: all words
    # have vectors of hidden_size. tie_word_embeddings then shares the tables of all bands and the matrices of all but
    # the first, which has none in the softmax
    adaptive_cutoffs: list[int] | None = None
    # how many times narrower than those of the band before the vectors of a band are
    adaptive_factor: int = number(4, least=1)
    # the dropout of the adaptive softmax's inputs, and of those that are narrowed for a band
    adaptive_softmax_dropout: float | int = number(0.2, most=1)

    # logits are kept below this by a tanh (soft capping)
    final_logit_softcapping: float | int | None = number(None, least=1)

    @property
    def adaptive_bands(self) -> list[tuple[int, int]]:
        """The number of words of each band, and the width of their vectors.

        Raises:
            ValueError: the vocabulary ends before the last band begins.
        """
        return divide(self.adaptive_cutoffs, self.vocab_size, self.hidden_size, self.adaptive_factor)

    @property
    def sizes(self) -> Sizes:
        """What the costs of sublayers depend on."""
        return super().sizes._replace(is_causal=True)

    @SublayersConfig.base_model_tp_plan.getter  # type: ignore[attr-defined]
    def base_model_tp_plan(self) -> dict[str, str]:
        """The tensor-parallel plan; every process has all of an adaptive embedding."""
        plan = super().base_model_tp_plan
        if self.adaptive_cutoffs is not None:
            del plan["embed_tokens"]
        return plan

    def validate_architecture(self):
        """Check also the cutoffs, and the widths of their bands."""
        super().validate_architecture()
        if self.adaptive_cutoffs is not None and self.final_logit_softcapping is not None:
            raise ValueError("an adaptive softmax has no final_logit_softcapping; leave it or adaptive_cutoffs out")
        check_cutoffs(self.adaptive_cutoffs, "hidden_size", self.hidden_size, self.adaptive_factor)


# transformers copies the files that a saved module imports; these lines name the whole family
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .modeling_sandwich_lm import SandwichLMForSequenceClassification

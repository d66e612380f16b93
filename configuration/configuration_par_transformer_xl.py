"""Configuration of the PAR Transformer-XL."""

from dataclasses import field
from typing import Literal

from sublayers.configuration.adaptive_bands import check_cutoffs, divide
from sublayers.configuration.configuration_recurrent_lm import RecurrentLMConfig
from sublayers.configuration.field_values import number, strict


@strict
class PARTransformerXLConfig(RecurrentLMConfig):
    """Transformer-XL over self-attention and feed-forward sublayers in any order.

    The defaults are the base model of Mandava, Migacz and Florea (2020), "Pay Attention when Required", table A2:
    199,840,218 parameters, and 191,950,298 of the interleaved order `(sf)16`. At evaluation the paper sets
    `memory_length=640`, `clamp_length=400` and `same_length=True`.

    Raises:
        ValueError: cutoffs that do not increase from above 0, a width that cannot be divided for every band, an odd
            hidden_size, or what every configuration refuses.
    """

    model_type = "par_transformer_xl"
    reach_field = "memory_length"

    sublayer_order: str = "(sfff)6f8"
    vocab_size: int = 267735
    hidden_size: int = 512
    intermediate_size: int | list[int] = 2048
    dropout: float | int = 0.1
    attention_dropout: float | int = 0.0
    position_embedding_type: Literal["relative"] = "relative"  # type: ignore[assignment]
    # how many tokens before a segment its attention remembers
    memory_length: int = number(192)
    # distances beyond are seen as this one; None: all are seen as they are
    clamp_length: int | None = number(None)
    # whether every token sees memory_length tokens, itself included, or else all of the memory and of its segment
    same_length: bool = False
    # whether all sublayers share the vectors by which heads weigh content and distance, as in the original; in
    # transformers' Transformer-XL each had its own
    share_position_biases: bool = True
    # the width of the most frequent words' vectors; None: hidden_size
    embedding_size: int | None = number(None, least=1)
    # ids, sorted by frequency, at which bands of rarer words begin; those beyond the vocabulary divide nothing
    adaptive_cutoffs: list[int] | None = field(default_factory=lambda: [19997, 39997, 199997])
    # how many times narrower than those of the band before the vectors of a band are, `div_val` in the original
    adaptive_factor: int = number(1, least=1)
    projection_initializer_range: float = number(0.01, most=1)

    @property
    def adaptive_bands(self) -> list[tuple[int, int]]:
        """The number of words of each band, and the width of their vectors."""
        width = self.embedding_size or self.hidden_size
        return divide(self.reached_cutoffs, self.vocab_size, width, self.adaptive_factor)

    @property
    def reached_cutoffs(self) -> list[int]:
        """The cutoffs within the vocabulary."""
        return [cutoff for cutoff in self.adaptive_cutoffs or [] if cutoff < self.vocab_size]

    @property
    def is_projected(self) -> bool:
        """Whether matrices stand between words' vectors and the model."""
        return self.adaptive_factor > 1 or self.embedding_size not in (None, self.hidden_size)

    def validate_architecture(self):
        """Check also the cutoffs, the widths of their bands, and that sinusoids fit."""
        super().validate_architecture()
        if self.hidden_size % 2:
            raise ValueError(f"hidden_size={self.hidden_size} is odd, but half of it is for sines; give an even one")
        width = self.embedding_size or self.hidden_size
        check_cutoffs(self.adaptive_cutoffs, "embedding_size", width, self.adaptive_factor)

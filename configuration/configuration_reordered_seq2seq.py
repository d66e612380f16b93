"""What the configurations of the encoder-decoder families share."""

from dataclasses import field
from typing import ClassVar

from sublayers.configuration.configuration_sublayers import NormPosition, SublayersConfig
from sublayers.configuration.field_values import number, strict
from sublayers.configuration.order import Order

# the folder beside a model's files that has the tokenizer of a target side with a vocabulary of its own
TARGET_TOKENIZER = "target_tokenizer"


@strict
class ReorderedSeq2SeqConfig(SublayersConfig):
    """An encoder and a decoder in any order; convolutions (`d`, `l`) may stand beside self-attention or in its place.

    The defaults are the base model of Vaswani et al. (2017) as fairseq has it: post-norm, ReLU, sinusoids after the
    padding index, one embedding for source, target and output, special tokens `<s> <pad> </s>` = 0, 1, 2.
    """

    order_fields: ClassVar[dict[str, str]] = {"encoder_sublayer_order": "encoder", "decoder_sublayer_order": "decoder"}
    keys_to_ignore_at_inference = [*SublayersConfig.keys_to_ignore_at_inference, "encoder_last_hidden_state"]

    vocab_size: int = 32768
    # None: vocab_size
    encoder_vocab_size: int | None = number(None, least=1)
    hidden_size: int = 512
    # of feed-forward sublayers in both stacks; a list has those of one stack, and the other one has the same
    intermediate_size: int | list[int] = 2048
    # the limit of the source and of the target, each
    max_position_embeddings: int = 1024
    attention_dropout: float | int = 0.0
    activation_dropout: float | int = 0.0
    # widths of the kernels of the first, second, ... convolution of each stack, the last one's also of those after it.
    # they have num_attention_heads, always a softmax, and drop their kernels' weights by attention_dropout
    kernel_sizes: list[int] = field(default_factory=lambda: [3, 7, 15, 31])
    # gated linear units before convolutions
    gated_convolutions: bool = True
    norm_position: NormPosition = "post"
    embedding_norm: bool = False
    position_offset: int = 2
    # one embedding for source and target; tie_word_embeddings shares the decoder's with the output
    share_encoder_decoder_embeddings: bool = True
    output_bias: bool = False
    # the share of each label's weight that the loss spreads over the vocabulary
    label_smoothing: float | int = number(0.0, most=1)
    is_encoder_decoder: bool = True
    pad_token_id: int | None = 1
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 2
    # None: the first of eos_token_id, as in fairseq
    decoder_start_token_id: int | None = None

    def __post_init__(self, **kwargs):
        if others := {"sublayer_order", "encoder_sublayer_order", "decoder_sublayer_order"} & kwargs.keys():
            raise ValueError(f"{self.model_type} has no {sorted(others)[0]}; give {' and '.join(self.order_fields)}")
        if self.decoder_start_token_id is None:
            eos = self.eos_token_id
            self.decoder_start_token_id = eos[0] if isinstance(eos, list) else eos
        super().__post_init__(**kwargs)

    @property
    def num_encoder_sublayers(self) -> int:
        """The number of residual sublayers of the encoder."""
        return len(self.stack_orders[0][0])

    @property
    def num_decoder_sublayers(self) -> int:
        """The number of residual sublayers of the decoder."""
        return len(self.stack_orders[1][0])

    @property
    def stack_orders(self) -> list[list[Order]]:
        """The orders in which the encoder, and those in which the decoder can run."""
        return [[order] for order in self.orders.values()]

    def get_text_config(self, decoder=None, encoder=None):
        """Return this configuration, whose counts are those that a cache needs."""
        return self

    def validate_architecture(self):
        """Check also that a shared embedding has one vocabulary, and the widths of kernels."""
        super().validate_architecture()
        if not self.kernel_sizes or min(self.kernel_sizes) < 1:
            raise ValueError(f"kernel_sizes={self.kernel_sizes} must be positive numbers; give at least one")
        if self.share_encoder_decoder_embeddings and self.encoder_vocab_size not in (None, self.vocab_size):
            raise ValueError(
                f"encoder_vocab_size={self.encoder_vocab_size} differs from vocab_size={self.vocab_size}, so the "
                "embeddings cannot be shared; set share_encoder_decoder_embeddings=False"
            )

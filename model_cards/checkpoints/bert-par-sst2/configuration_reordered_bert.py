"""What the configurations of the BERT-like families share."""

from typing import ClassVar, Literal

from .configuration_sublayers import (
    NormPosition,
    PositionEmbeddingType,
    SublayersConfig,
    strict,
)
from .field_values import number


@strict
class ReorderedBertConfig(SublayersConfig):
    """A bidirectional encoder with BERT's heads over self-attention and feed-forward sublayers in any order.

    The defaults are BERT base (Devlin et al., 2019) up to the order: post-norm, GELU, learned positions.
    """

    order_fields: ClassVar[dict[str, str]] = {"sublayer_order": "bidirectional"}
    # BERT's names of these fields
    attribute_map = {"hidden_dropout_prob": "dropout", "attention_probs_dropout_prob": "attention_dropout"}

    vocab_size: int = 30522
    sublayer_order: str = "(sf)12"
    hidden_size: int = 768
    intermediate_size: int | list[int] = 3072
    num_attention_heads: int = 12
    max_position_embeddings: int = 512
    type_vocab_size: int = number(2, least=1)
    # the vector of the first segment stays zero
    untrained_first_segment: bool = False
    hidden_act: str = "gelu"
    # the activation after the pooler's linear map
    pooler_act: str = "tanh"
    # the dropout after that activation
    pooler_norm: bool = False
    activation_dropout: float | int = 0.0
    # the dropout before classifiers of texts, choices and tokens; None: dropout
    classifier_dropout: float | int | None = number(None, most=1)
    # what heads that pool read: the first token, or the mean of all tokens
    classifier_pooling: Literal["cls", "mean"] = "cls"
    # whether heads of tokens read each as the pooler makes it
    pools_tokens: bool = False
    # what runs through the tail of the order for heads that pool: the first token, or the mean of all where it begins
    tail_query: Literal["first", "mean"] = "first"
    # the dropout before the pooler's linear map; None: dropout
    pooler_dropout: float | int | None = number(0.0, most=1)
    # the dropout before the map that scores where answers start and end
    qa_dropout: float | int = number(0.0, most=1)
    norm_position: NormPosition = "post"
    embedding_norm: bool = True
    position_embedding_type: PositionEmbeddingType = "learned"
    # beside positions: attention adds a bias for each group of distances, of which there are this many; None: no bias
    relative_attention_num_buckets: int | None = number(None, least=4)
    scale_embedding: bool = False
    # bert: a pooler, a bias for each word and two next-sentence logits; macaron: none of them, and a single logit
    head_type: Literal["bert", "macaron"] = "bert"
    layer_norm_eps: float = 1e-12
    pad_token_id: int | None = 0
    use_cache: bool = False

    def validate_architecture(self):
        """Check the orders and heads, that what adds biases to its scores is `s` or `m`, and that one mean is read."""
        super().validate_architecture()
        if self.classifier_pooling == "mean" and self.tail_query == "mean":
            raise ValueError("classifier_pooling='mean' needs all states after the tail; leave tail_query='mean' out")
        if self.relative_attention_num_buckets is not None and self.has_windows:
            raise ValueError(
                f"relative_attention_num_buckets={self.relative_attention_num_buckets} is for s and m alone; leave it "
                f"out, or take w out of the order {self.sublayer_order!r}"
            )

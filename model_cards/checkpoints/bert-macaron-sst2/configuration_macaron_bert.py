from .versions import TRANSFORMERS  # noqa: F401

"""Configuration of Macaron BERT."""

from typing import Literal

from .configuration_reordered_bert import ReorderedBertConfig
from .configuration_sublayers import NormPosition, PositionEmbeddingType
from .field_values import strict


@strict
class MacaronBertConfig(ReorderedBertConfig):
    """BERT with half a feed-forward step on both sides of attention.

    The defaults are the released model of Lu et al. (2019), section 4.2, which differs from BERT in more than its
    order: norms before the sublayers and without parameters, sinusoidal positions from 2 on, scaled embeddings, a first
    segment that is not trained, ReLU before and GELU after attention, and simpler heads.
    """

    model_type = "macaron_bert"

    vocab_size: int = 32768
    sublayer_order: str = "(fsf)12"
    intermediate_size: int | list[int] = 1536
    max_position_embeddings: int = 384
    untrained_first_segment: bool = True
    pre_attention_act: str | None = "relu"
    classifier_dropout: float | int | None = 0.0
    norm_position: NormPosition = "pre"
    norm_affine: bool = False
    final_norm: bool = True
    feed_forward_scale: float | int = 0.5
    embedding_norm: bool = False
    position_embedding_type: PositionEmbeddingType = "sinusoidal"
    position_offset: int = 2
    scale_embedding: bool = True
    head_type: Literal["bert", "macaron"] = "macaron"
    layer_norm_eps: float = 1e-5
    pad_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2


# transformers copies the files that a saved module imports; these lines name the whole family
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .modeling_macaron_bert import MacaronBertForMultipleChoice
    from .question_answering import QuestionAnsweringPipeline

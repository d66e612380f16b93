"""A student's folder as one that SentenceTransformer opens."""

from pathlib import Path

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling as PoolingModule, Transformer

from sublayers.training.distill.teacher import Pooling, Teacher

# pooling by the first token needs the state of that token alone
FIRST_TOKEN = {"text": {"method": "forward_first_token", "method_output_name": "last_hidden_state"}}


def save_sentence_encoder(folder: str | Path, teacher: Teacher, pooling: Pooling, max_length: int) -> None:
    """Add to a student's folder what a SentenceTransformer does with its states: it pools, and what its teacher's does.

    Args:
        folder: with model and tokenizer.
        teacher: whose answers the student was trained for.
        pooling: by which the student was trained.
        max_length: tokens of a text that are read where the teacher does not say how many.
    """
    method = {"modality_config": FIRST_TOKEN, "module_output_name": "token_embeddings"}
    body = Transformer(str(folder), **(method if pooling == "cls" else {}))
    positions = body.model.config.max_position_embeddings
    body.max_seq_length = min(teacher.max_seq_length or max_length, positions)
    modules = [body, PoolingModule(body.get_embedding_dimension(), pooling)]
    if teacher.normalize:
        modules.append(Normalize())
    encoder = SentenceTransformer(modules=modules, device="cpu", **teacher.settings)
    encoder.save(str(folder), create_model_card=False)

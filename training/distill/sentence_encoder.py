"""A student's folder as one that SentenceTransformer opens."""

from pathlib import Path

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

from sublayers.training.distill.teacher import Teacher

# to pool by the first token, nothing else need be computed
FIRST_TOKEN = {"text": {"method": "forward_first_token", "method_output_name": "last_hidden_state"}}


def save_sentence_encoder(folder: str | Path, teacher: Teacher, max_length: int) -> None:
    """Add to a student's folder what a SentenceTransformer does with its states, which is what the teacher's does.

    Args:
        folder: with model and tokenizer.
        teacher: by whose pooling the student was trained.
        max_length: tokens of a text that are read where the teacher does not say how many.
    """
    method = {"modality_config": FIRST_TOKEN, "module_output_name": "token_embeddings"}
    body = Transformer(str(folder), **(method if teacher.pooling == "cls" else {}))
    positions = body.model.config.max_position_embeddings
    body.max_seq_length = min(teacher.max_seq_length or max_length, positions)
    modules = [body, Pooling(body.get_embedding_dimension(), teacher.pooling)]
    if teacher.normalize:
        modules.append(Normalize())
    encoder = SentenceTransformer(modules=modules, device="cpu", **teacher.settings)
    encoder.save(str(folder), create_model_card=False)

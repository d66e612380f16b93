"""Embed sentences by their first token, at a classifier's cost: `python examples/sentence_encoder.py runs/bert`.

The folder has a BERT-like model of ours and its tokenizer.
"""

import sys

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

import sublayers  # noqa: F401, the Auto classes know our models now

# the method that computes no other token
first_token = {"text": {"method": "forward_first_token", "method_output_name": "last_hidden_state"}}
body = Transformer(sys.argv[1], modality_config=first_token, module_output_name="token_embeddings")
encoder = SentenceTransformer(modules=[body, Pooling(body.get_embedding_dimension(), "cls")])
sentences = ["Ada wrote the first program.", "Who wrote it?", "It rains."]
print(encoder.similarity(encoder.encode(sentences), encoder.encode(sentences)))
encoder.save("runs/encoder")

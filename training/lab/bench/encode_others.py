"""What `sublayers bench encode` measures beside: what each part of `optimize` gains, and other people's runtimes."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from sublayers import optimize
from sublayers.modeling.modeling_sublayers import SublayersPreTrainedModel
from sublayers.training.flags import flag

FASTEMBED, LLAMA = "fastembed", "llama.cpp"
# each takes away one thing more than the one before
TORCH_MAPS, WHOLE_BATCHES = "nor oneDNN", "nor parts of batches"
ALL_READ, ALL_COMPUTED = "and all tokens read", "and all tokens computed"
# texts by which embeddings are compared, and the least cosine: 8 bits have about 0.99, another model nearly nothing
COMPARED, LEAST_COSINE = 8, 0.9
# tokens that llama.cpp reads at once, unless a text may have more
LLAMA_TOKENS = 512

# inputs, and how many are read at once
Encode = Callable[[list[Any], int], Any]


@dataclass(kw_only=True)
class OtherRuntimes:
    """Flags for the same model in the files of other runtimes."""

    fastembed: str | None = flag("the model's name in fastembed, to measure that, too")
    gguf: Path | None = flag("the model in a GGUF file, to measure llama.cpp, too (llama-cpp-python)")


def parts_of(model: Any) -> dict[str, Any]:
    """Make what `optimize` makes without prepacking, with one thing less each time.

    First the linear maps run in torch's own library. Then batches run at once, not in parts of some rows. Then a
    SentenceTransformer that pools by one token reads all tokens (others read all, or their head names what it reads).
    At last all tokens are computed, also padding and what a head does not read.

    Args:
        model: a SentenceTransformer or CrossEncoder of transformers' classes.

    Raises:
        ValueError: what `optimize` refuses, or a model of this package, of which it makes no other.
    """
    if isinstance(model[0].model, SublayersPreTrainedModel):
        raise ValueError(f"{type(model[0].model).__name__} is one of this package already; leave out --parts")

    def take_torch(held: Any) -> None:
        for module in held.modules():
            if type(module) is nn.Linear:
                vars(module).pop("forward", None)

    def run_at_once(held: Any) -> None:
        # who hears what a body computes expects to see a batch once
        held[0].model.base_model.register_forward_hook(lambda *heard: None)

    def read_all(held: Any) -> None:
        held[0].modality_config = model[0].modality_config

    def compute_all(held: Any) -> None:
        held[0].model.config.output_hidden_states = True

    steps = {TORCH_MAPS: take_torch, WHOLE_BATCHES: run_at_once, ALL_READ: read_all, ALL_COMPUTED: compute_all}
    if optimize(model)[0].modality_config == model[0].modality_config:
        del steps[ALL_READ]
    found = {}
    for name, taken in zip(steps, accumulate([step] for step in steps.values()), strict=True):
        found[name] = optimize(model, prepack=False)
        for step in taken:
            step(found[name])
    return found


def others_of(args: OtherRuntimes, model: Any, is_reranker: bool, texts: list[str]) -> dict[str, Encode]:
    """Open the model in the other runtimes that flags name, on as many threads as torch has.

    Args:
        args: the flags.
        model: the encoder, with whose embeddings theirs are compared.
        is_reranker: whether it scores pairs, which they are not asked to do.
        texts: by which they are compared.

    Raises:
        ModuleNotFoundError: a runtime is not installed.
        ValueError: a reranker, what a runtime cannot open, or other embeddings.
    """
    found: dict[str, Encode] = {}
    if is_reranker and (args.fastembed or args.gguf):
        raise ValueError("fastembed and llama.cpp are measured as encoders of texts; leave --fastembed and --gguf out")
    if args.fastembed:
        from fastembed import TextEmbedding

        embedder = TextEmbedding(args.fastembed, threads=torch.get_num_threads())
        found[FASTEMBED] = lambda inputs, size: [*embedder.embed(inputs, size)]
    if args.gguf:
        from llama_cpp import Llama

        threads, tokens = torch.get_num_threads(), max(LLAMA_TOKENS, model.max_seq_length or 0)
        sizes = {"n_ctx": tokens, "n_batch": tokens, "n_ubatch": tokens}
        llama = Llama(
            str(args.gguf), embedding=True, n_threads=threads, n_threads_batch=threads, verbose=False, **sizes
        )
        # it fills its batches by itself
        found[LLAMA] = lambda inputs, size: [
            row for i in range(0, len(inputs), size) for row in llama.embed(inputs[i : i + size])
        ]
    wanted = np.asarray(model.encode(texts[:COMPARED], normalize_embeddings=True) if found else [])
    for name, encode in found.items():
        rows = np.asarray(encode(texts[:COMPARED], COMPARED))
        cosines = (rows * wanted).sum(1) / np.linalg.norm(rows, axis=1) if rows.shape == wanted.shape else [0]
        if min(cosines) < LEAST_COSINE:
            raise ValueError(
                f"{name} gives other embeddings (a cosine of {min(cosines):.2f}); name the same model, with its pooling"
            )
    return found

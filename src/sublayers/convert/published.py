"""Orders of models that others have published, which `convert` keeps."""

from typing import NamedTuple


class Published(NamedTuple):
    """What a model is here: its family and order, and where its order is published."""

    family: str
    order: str
    source: str


PUBLISHED = {
    # attention in layers 2, 5, 8, 10, 12 and 14 of 16
    "LFM2-350M": Published(
        "sandwich_lm", "(gfgfsf)3(gfsf)3gf", "full_attn_idxs in config.json of huggingface.co/LiquidAI/LFM2-350M"
    ),
    # M-M-M-M*, then -M-M-M-M-M* three times, then -M-M-M-M-M-
    "Nemotron-H-4B-Base-8K": Published(
        "sandwich_lm",
        "(rf)3rs((fr)5s)3(fr)5f",
        "hybrid_override_pattern in config.json of huggingface.co/nvidia/Nemotron-H-4B-Base-8K",
    ),
    **{
        name.split("/")[1]: Published("sandwich_lm", order, f"config.json of huggingface.co/{name}")
        for name, order in {
            "allenai/OLMoE-1B-7B-0924": "(se)16",
            "mistralai/Mixtral-8x7B-v0.1": "(se)32",
            "Qwen/Qwen3-30B-A3B": "(se)48",
            "Qwen/Qwen3-Next-80B-A3B-Instruct": "((re)3se)12",
        }.items()
    },
}

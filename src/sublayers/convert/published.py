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
}

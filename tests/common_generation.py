"""Settings of generation, and decoding written out."""

import torch
from common import EOS
from families import padded, texts

STEPS = 6
GREEDY = {"max_new_tokens": STEPS, "min_new_tokens": STEPS, "do_sample": False, "eos_token_id": None}
BEAMS = GREEDY | {"num_beams": 4, "num_return_sequences": 4, "length_penalty": 0.7}
SCORES = {"return_dict_in_generate": True, "output_scores": True}
STATIC = {"cache_implementation": "static"}


def sources(model) -> dict[str, torch.Tensor]:
    """Sources with padding on both sides."""
    return {name: rows for name, rows in padded(model).items() if not name.startswith("decoder")}


def naive_greedy(model, batch, forced=({},) * 3) -> torch.Tensor:
    """Greedy decoding that runs all anew for every token, one text at a time and without padding."""
    rows, name = [], "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"
    for text, orders in zip(texts(batch), forced, strict=False):
        text = {"decoder_input_ids": torch.tensor([[EOS]])} | text if model.config.is_encoder_decoder else text
        for _ in range(STEPS):
            scores = model(**text, **orders, use_cache=False).logits[:, -1:]
            text[name] = torch.cat([text[name], scores.argmax(-1)], 1)
        rows.append(text[name][0, -STEPS:])
    return torch.stack(rows)

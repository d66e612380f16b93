"""Models of our families with a tokenizer each, in a folder."""

from families import build

from sublayers.training.data.tokenizers import train_tokenizer

TEXT = "Ada wrote the first program."


def save_model(
    folder, family="par_bert", head=None, texts=(TEXT,), kind="wordpiece", words=60, self_contained=False, **options
):
    """Save a model of random weights that knows the tokens of a tokenizer, and return both."""
    tokenizer = train_tokenizer(texts, kind, words)
    ids = {name: getattr(tokenizer, name) for name in ("pad_token_id", "eos_token_id")}
    model = build(family, head, **{"vocab_size": len(tokenizer)} | ids | options)
    for part in (model, tokenizer):
        part.save_pretrained(folder)
    return model, tokenizer

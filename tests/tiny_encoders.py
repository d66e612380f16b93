"""Folders of small models of transformers, with tokenizers whose tokens they know."""

from common_convert import GROUPED, make

from sublayers.training.data.tokenizers import train_tokenizer

TEXTS = ["yes, a short text, no", "another one, and a longer text, and then a short one", "one"]
PAIRS = [("a text", "one"), ("another one", "a longer text and then a short one"), ("one", "a")]
SOURCES = {"BertModel": {}, "Qwen3Model": GROUPED | {"head_dim": 12}}


def save(folder, name, **options):
    """A folder of transformers with a tokenizer whose tokens the model knows."""
    tokenizer = train_tokenizer(TEXTS, "wordpiece", 60)
    options |= {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    model = make(name, **options).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder

import pytest
import torch
from families import build

from sublayers.training.data.tokenizers import train_tokenizer

pytestmark = pytest.mark.slow

sentence_transformers = pytest.importorskip("sentence_transformers")
TEXTS = ["a short text", "another one, and a longer text, and then a short one", "one"]


# texts are pooled by their mean, those of causal models by their last token
@pytest.mark.parametrize("family", ["par_bert", "macaron_bert", "sandwich_lm"])
def test_embeds_texts_as_they_are_pooled_by_hand(family, tmp_path):
    tokenizer = train_tokenizer(TEXTS, "bpe" if family == "sandwich_lm" else "wordpiece", 300)
    model = build(family, vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    embedder = sentence_transformers.SentenceTransformer(str(tmp_path), device="cpu")
    # in one padded batch
    together = embedder.encode(TEXTS, convert_to_tensor=True)
    for text, embedded in zip(TEXTS, together, strict=True):
        with torch.no_grad():
            states = model.base_model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        expected = states[-1] if family == "sandwich_lm" else states.mean(0)
        torch.testing.assert_close(embedded, expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(embedder.encode(text, convert_to_tensor=True), expected, atol=1e-5, rtol=1e-5)
    embedder.save(str(tmp_path / "saved"))
    again = sentence_transformers.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    assert torch.equal(again.encode(TEXTS, convert_to_tensor=True), together)

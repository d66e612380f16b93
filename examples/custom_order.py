"""Write an order of your own: `python examples/custom_order.py s2wf3`. Any string is a network."""

import sys

import torch

from sublayers import Order, PARBertConfig, PARBertForSequenceClassification

order = sys.argv[1] if sys.argv[1:] else "ffss(fs)4"
config = PARBertConfig(
    sublayer_order=order,
    vocab_size=1000,
    hidden_size=64,
    intermediate_size=256,
    num_attention_heads=4,
    attention_window=8 if Order(order).has_windows else None,
)
model = PARBertForSequenceClassification(config).eval()
texts = torch.tensor([[2, 11, 7, 3], [2, 512, 3, 0]])
print(f"{Order(order).letters}: {model.num_parameters():,} parameters")
print(model(texts, attention_mask=texts.ne(0)).logits)

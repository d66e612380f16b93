"""Train adapters with PEFT: `python examples/peft_lora.py`. By default it adapts queries and values."""

import torch
from peft import LoraConfig, get_peft_model

from sublayers import PARBertConfig, PARBertForSequenceClassification

config = PARBertConfig(
    sublayer_order="s2(sf)2f2", vocab_size=1000, hidden_size=64, intermediate_size=256, num_attention_heads=4
)
lora = LoraConfig(task_type="SEQ_CLS", r=4)
model = get_peft_model(PARBertForSequenceClassification(config), lora)
model.print_trainable_parameters()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
texts = torch.randint(5, 1000, (8, 16))
labels = texts[:, 3] % 2
for step in range(10):
    loss = model(input_ids=texts, labels=labels).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: {loss.item():.3f}")
model.save_pretrained("runs/adapters")

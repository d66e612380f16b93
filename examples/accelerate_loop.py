"""A training loop of your own: `accelerate launch examples/accelerate_loop.py`. The text is this file."""

from pathlib import Path

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from sublayers import SandwichLMConfig, SandwichLMForCausalLM

accelerator = Accelerator(gradient_accumulation_steps=2)
text = torch.tensor([*Path(__file__).read_bytes()])
rows = text[: len(text) // 32 * 32].view(-1, 32)
config = SandwichLMConfig(
    sublayer_order="sandwich(3,1)", vocab_size=256, hidden_size=64, intermediate_size=256, num_attention_heads=4
)
model = SandwichLMForCausalLM(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
model, optimizer, batches = accelerator.prepare(model, optimizer, DataLoader(rows, batch_size=8, shuffle=True))
for epoch in range(3):
    for batch in batches:
        with accelerator.accumulate(model):
            loss = model(batch, labels=batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    accelerator.print(f"epoch {epoch}: {loss.item():.2f} nats per byte")
accelerator.unwrap_model(model).save_pretrained("runs/loop", is_main_process=accelerator.is_main_process)

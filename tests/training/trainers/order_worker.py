"""What each of two processes runs: a step of the OrderTrainer, whose gradients the first one saves."""

import sys

import torch
from common import GradientCatcher
from common_seq2seq_training import collator, ragged_rows, trainer_arguments
from safetensors.torch import save_file
from transformers import AutoModelForSeq2SeqLM

from sublayers.training.trainers.order_trainer import OrderTrainer


class OrderGradientCatcher(GradientCatcher, OrderTrainer):
    pass


torch.nn.functional.gumbel_softmax = lambda logits, tau, dim: (logits / tau).softmax(dim)
model_folder, output = sys.argv[1:]
model = AutoModelForSeq2SeqLM.from_pretrained(model_folder)
options = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
options |= {"train_sampling_strategy": "sequential", "max_steps": 1, "max_grad_norm": 0}
arguments = trainer_arguments(output, **options)
trainer = OrderGradientCatcher(
    [], None, model=model, args=arguments, train_dataset=ragged_rows(), data_collator=collator(model)
)
found = trainer.caught()
if trainer.is_world_process_zero():
    # without the name that DistributedDataParallel puts in front
    found = {name.removeprefix("module."): gradient.contiguous() for name, gradient in found.items()}
    save_file(found, f"{output}/gradients.safetensors")
torch.distributed.destroy_process_group()

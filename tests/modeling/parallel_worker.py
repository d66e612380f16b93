"""What each of two processes runs: models split by tensors, by experts and sharded, compared with whole ones."""

import sys

import torch
from torch.distributed.tensor import DTensor
from transformers import AutoConfig
from transformers.distributed import DistributedConfig

import sublayers


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole_tensor(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def train(model):
    """Run a training step's passes; instance-wise orders are weighted with noise."""
    torch.manual_seed(0)
    outputs = model.train()(ids, labels=ids)
    outputs.loss.backward()
    return outputs


ids = torch.arange(24).view(2, 12)
for folder in sys.argv[1:]:
    config = AutoConfig.from_pretrained(folder)
    head = getattr(sublayers, config.architectures[0])
    whole = head.from_pretrained(folder)
    expected = train(whole)
    ways = [{"tp_size": 2}, {"fsdp_size": 2}]
    # processes that have some of the experts share other weights
    ways += [{"ep_size": 2, "fsdp_size": 2}] if whole.ep_plan else []
    for sizes in ways:
        model = head.from_pretrained(folder, distributed_config=DistributedConfig(**sizes))
        shapes = {name: p.shape for name, p in whole.named_parameters()}
        split = [name for name, p in model.named_parameters() if local(p).shape != shapes[name]]
        for stack in ("encoder", "decoder") if config.is_encoder_decoder else ("model",):
            assert any(stack in name and "mixer" in name for name in split), f"{sizes} split nothing: {split}"
        actual = train(model)
        torch.testing.assert_close(actual.loss, expected.loss)
        torch.testing.assert_close(actual.logits, expected.logits, atol=1e-5, rtol=1e-5)
        gradients = {name: whole_tensor(p.grad) for name, p in model.named_parameters()}
        for name, parameter in whole.named_parameters():
            torch.testing.assert_close(gradients[name], parameter.grad, atol=1e-5, rtol=1e-4)
        print("equal", sizes, folder)
torch.distributed.destroy_process_group()

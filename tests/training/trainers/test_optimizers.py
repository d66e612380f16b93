import copy

import pytest
import torch
from torch import nn
from transformers import Trainer, TrainingArguments

from sublayers.training.trainers.optimizers import ClippingAdagrad, JITLamb, NVLamb


def test_a_step_is_that_of_the_paper(tmp_path):
    model = nn.ModuleDict({"linear": nn.Linear(30, 20), "norm": nn.LayerNorm(20)})
    with torch.no_grad():
        # a norm of more than 10, where the library's class would clamp it
        model["linear"].weight.mul_(50)
    arguments = TrainingArguments(str(tmp_path), weight_decay=0.1, use_cpu=True, report_to="none")
    settings = {"lr": 0.02, "betas": (0.8, 0.9), "eps": 1e-3}
    trainer = Trainer(model, arguments, optimizer_cls_and_kwargs=(NVLamb, settings))
    optimizer = trainer.create_optimizer()

    naive = copy.deepcopy(model)
    moments = {name: (torch.zeros_like(p), torch.zeros_like(p)) for name, p in naive.named_parameters()}
    for step in range(3):
        gradients = {name: torch.randn_like(p) * (step + 1) for name, p in naive.named_parameters()}
        for name, parameter in model.named_parameters():
            parameter.grad = gradients[name].clone()
        optimizer.step()
        with torch.no_grad():
            for name, parameter in naive.named_parameters():
                first, second = moments[name]
                first.copy_(0.8 * first + 0.2 * gradients[name])
                second.copy_(0.9 * second + 0.1 * gradients[name] ** 2)
                update, ratio = first / (second.sqrt() + 1e-3), 1.0
                # biases and norms have neither a decay nor a trust ratio
                if name == "linear.weight":
                    update = update + 0.1 * parameter
                    ratio = parameter.norm() / update.norm()
                    assert parameter.norm() > 10
                parameter -= 0.02 * ratio * update
        for name, parameter in naive.named_parameters():
            torch.testing.assert_close(
                model.get_parameter(name), parameter, msg=lambda m, n=name: f"{n}: {m}", rtol=1e-4, atol=1e-5
            )


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_lamb_of_transformer_xl_scales_every_step_by_a_norm_of_at_most_ten(weight_decay):
    model = nn.ModuleDict({"linear": nn.Linear(30, 20), "norm": nn.LayerNorm(20)})
    with torch.no_grad():
        model["linear"].weight.mul_(50)
    optimizer = JITLamb(model.parameters(), lr=0.02, betas=(0.8, 0.9), eps=1e-3, weight_decay=weight_decay)
    naive = copy.deepcopy(model)
    moments = {name: (torch.zeros_like(p), torch.zeros_like(p)) for name, p in naive.named_parameters()}
    for step in range(3):
        gradients = {name: torch.randn_like(p) * (step + 1) for name, p in naive.named_parameters()}
        for name, parameter in model.named_parameters():
            parameter.grad = gradients[name].clone()
        optimizer.step()
        with torch.no_grad():
            for name, parameter in naive.named_parameters():
                first, second = moments[name]
                first.copy_(0.8 * first + 0.2 * gradients[name])
                second.copy_(0.9 * second + 0.1 * gradients[name] ** 2)
                update = first / (second.sqrt() + 1e-3) + weight_decay * parameter
                # a tensor of zeros, such as a new norm's bias, has a step of Adam's
                norm = parameter.norm().clamp(max=10)
                parameter -= 0.02 * (norm / update.norm() if norm else 1.0) * update
        for name, parameter in naive.named_parameters():
            torch.testing.assert_close(
                model.get_parameter(name), parameter, msg=lambda m, n=name: f"{n}: {m}", rtol=1e-3, atol=1e-5
            )


@pytest.mark.parametrize("largest", [None, 0.5])
def test_clipped_adagrad_takes_shorter_steps_by_the_squares_of_whole_gradients(largest):
    parameters = [nn.Parameter(torch.randn(4, 5)), nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(2))]
    naive, sums = [p.detach().clone() for p in parameters], [torch.zeros_like(p) for p in parameters]
    optimizer = ClippingAdagrad(parameters, max_tensor_grad_norm=largest, lr=0.1)
    for _ in range(4):
        # one tensor is far above the norm, one below, and one has none
        gradients = [torch.randn(4, 5), torch.randn(3) * 0.01]
        for parameter, gradient in zip(parameters, gradients, strict=False):
            parameter.grad = gradient.clone()
        optimizer.step()
        for parameter, total, gradient in zip(naive, sums, gradients, strict=False):
            total += gradient**2
            share = min(1.0, largest / gradient.norm().item()) if largest else 1.0
            parameter -= 0.1 * share * gradient / (total.sqrt() + 1e-10)
    for actual, expected in zip(parameters, naive, strict=True):
        torch.testing.assert_close(actual.detach(), expected)

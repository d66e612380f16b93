import copy

import pytest
import torch
from torch import nn
from transformers import Trainer, TrainingArguments

from sublayers.training.trainers.optimizers import ClippingAdagrad, JITLamb, NVLamb


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("lamb", [NVLamb, JITLamb])
def test_a_step_is_that_of_the_paper_and_of_nvidias_code(lamb, weight_decay, tmp_path):
    model = nn.ModuleDict({"linear": nn.Linear(30, 20), "norm": nn.LayerNorm(20)})
    with torch.no_grad():
        # a norm of more than 10, which one of them clamps
        model["linear"].weight.mul_(50)
    settings = {"lr": 0.02, "betas": (0.8, 0.9), "eps": 1e-3}
    arguments = TrainingArguments(str(tmp_path), weight_decay=weight_decay, use_cpu=True, report_to="none")
    # the Trainer gives no weight decay to biases and norms
    optimizer = Trainer(model, arguments, optimizer_cls_and_kwargs=(lamb, settings)).create_optimizer()
    naive = copy.deepcopy(model)
    moments = {name: (torch.zeros_like(p), torch.zeros_like(p)) for name, p in naive.named_parameters()}
    for step in range(3):
        gradients = {name: torch.randn_like(p) * (step + 1) for name, p in naive.named_parameters()}
        for name, parameter in model.named_parameters():
            parameter.grad = gradients[name].clone()
        optimizer.step()
        assert [group["lr"] for group in optimizer.param_groups] == [0.02, 0.02]
        with torch.no_grad():
            for name, parameter in naive.named_parameters():
                first, second = moments[name]
                first.copy_(0.8 * first + 0.2 * gradients[name])
                second.copy_(0.9 * second + 0.1 * gradients[name] ** 2)
                decay = weight_decay * (name == "linear.weight")
                # the one corrects the bias of its moments
                bias = [1 - beta ** (step + 1) if lamb is NVLamb else 1 for beta in (0.8, 0.9)]
                update = first / bias[0] / ((second / bias[1]).sqrt() + 1e-3) + decay * parameter
                norm = parameter.norm()
                # the one scales what decays; the other all by a norm of at most ten, unless they are zeros
                is_scaled = decay > 0 if lamb is NVLamb else norm > 0
                norm = norm if lamb is NVLamb else norm.clamp(max=10)
                parameter -= 0.02 * (norm / update.norm() if is_scaled else 1.0) * update
        for name, parameter in naive.named_parameters():
            torch.testing.assert_close(
                model.get_parameter(name), parameter, msg=lambda m, n=name: f"{n}: {m}", rtol=1e-4, atol=1e-5
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


def test_nesterovs_momentum_takes_the_steps_of_fairseqs_whose_velocities_hold_the_rate(tmp_path):
    model = nn.Linear(5, 4)
    arguments = TrainingArguments(
        str(tmp_path), use_cpu=True, report_to="none", optim="sgd", optim_args="momentum=0.99,nesterov=True"
    )
    optimizer = Trainer(model, arguments).create_optimizer()
    naive, velocity, last = model.weight.detach().clone(), torch.zeros(4, 5), 1e-7
    for rate in (1e-7, 0.5, 1.0, 0.3):
        for group in optimizer.param_groups:
            group["lr"] = rate
        gradient = torch.randn(4, 5)
        model.weight.grad = gradient.clone()
        optimizer.step()
        # a change of the rate scales what is left of earlier steps
        velocity = 0.99 * rate / last * velocity - rate * gradient
        naive += 0.99 * velocity - rate * gradient
        last = rate
        torch.testing.assert_close(model.weight.detach(), naive)

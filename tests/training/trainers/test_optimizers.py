import copy

import torch
from torch import nn
from transformers import Trainer, TrainingArguments

from sublayers.training.trainers.optimizers import NVLamb


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

"""What the Trainer of an instance-wise ordered model adds: losses of whole batches, logged choices, the temperature."""

import logging
from collections import Counter
from typing import Any

import torch

from sublayers.modeling.order_choice import OrderStatistics
from sublayers.training.trainers.pair_trainer import PairTrainer

logger = logging.getLogger(__name__)

TERMS = ("cross_entropy", "diversity", "sharpness")
# the share of sentences from which on one order has taken over
COLLAPSED = 0.95


class OrderTrainer(PairTrainer):
    """A PairTrainer for models that choose orders.

    Losses are exact where gradients are accumulated or averaged over processes. The temperature of the choice falls
    with every step. The terms of the loss and the share of each order are logged, and a warning says when all sentences
    but a few choose the same.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.order_statistics: OrderStatistics | None = None
        self.reset_sums()

    def orders(self) -> dict[str, list[str]]:
        """The orders that are predicted, by their stack."""
        config: Any = self.model.config
        stacks = {"encoder": config.encoder_orders, "decoder": config.decoder_orders}
        predicted = zip(stacks.items(), config.num_predicted_orders, strict=True)
        return {name: orders for (name, orders), number in predicted if number}

    def reset_sums(self) -> None:
        """Begin to sum up the terms and to count the choices of the next log."""
        device = self.args.device
        self.updates = 0
        self.terms = torch.zeros(len(TERMS), device=device)
        self.chosen = {name: torch.zeros(len(orders), device=device) for name, orders in self.orders().items()}

    def get_batch_samples(self, *args, **kwargs) -> Any:
        """Get the batches of a step and, if they are several, what their losses have to know of each other."""
        model: Any = self.model
        # the configuration says how the temperature falls from update to update
        model.anneal(self.state.global_step)
        samples, num_items_in_batch = super().get_batch_samples(*args, **kwargs)
        self.order_statistics = None
        self.updates += bool(samples)
        if samples and self.orders() and (len(samples) > 1 or self.args.world_size > 1):
            self.order_statistics = self.look_ahead(samples)
        return samples, num_items_in_batch

    @torch.no_grad()
    def look_ahead(self, samples: list[dict[str, Any]]) -> OrderStatistics:
        """Find the mean probability of each order in all batches of a step, which costs the encoder's forward pass."""
        model: Any = self.model
        paths = Counter(encoder_order for encoder_order, _ in model.config.paths)
        sums: dict[str, torch.Tensor] = {}
        # a resumed run sets the state of the random numbers only after this, so none may be drawn here
        model.eval()
        for sample in samples:
            source = self._prepare_inputs({name: sample[name] for name in ("input_ids", "attention_mask")})
            with self.compute_loss_context_manager():
                for encoder_order, number in paths.items():
                    encoded = model.get_encoder()(**source, forced_encoder_order=encoder_order)
                    for name in self.orders():
                        found = encoded[f"{name}_order_logits"].float().softmax(-1).sum(0) * number / paths.total()
                        sums[name] = sums.get(name, 0) + found
        model.train()
        totals = {name: self.accelerator.reduce(found, "sum") for name, found in sums.items()}
        # the probabilities of a sentence add up to one
        num_sentences = round(next(iter(totals.values())).sum().item())
        means = {name: total / num_sentences for name, total in totals.items()}
        return OrderStatistics(num_sentences, means.get("encoder"), means.get("decoder"))

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, *args, **kwargs) -> Any:
        """Compute the loss, and remember its terms and the choices."""
        if self.order_statistics is not None:
            inputs = {**inputs, "order_statistics": self.order_statistics}
        loss, outputs = super().compute_loss(model, inputs, True, *args, **kwargs)
        self.terms += torch.stack([outputs[name] for name in TERMS])
        for name, chosen in self.chosen.items():
            chosen += outputs[f"{name}_order"].bincount(minlength=len(chosen))
        return (loss, outputs) if return_outputs else loss

    def log(self, logs: dict[str, float], *args, **kwargs) -> None:
        """Log also the terms of the loss, and the share of each order among the sentences since the last time."""
        if "loss" in logs and self.updates:
            terms = self.accelerator.reduce(self.terms, "sum") / self.updates
            logs |= dict(zip(TERMS, terms.tolist(), strict=True))
            for name, orders in self.orders().items():
                chosen = self.accelerator.reduce(self.chosen[name], "sum")
                shares = dict(zip(orders, (chosen / chosen.sum()).tolist(), strict=True))
                logs |= {f"{name}_{order}": share for order, share in shares.items()}
                order, share = max(shares.items(), key=lambda item: item[1])
                if share > COLLAPSED and self.is_world_process_zero():
                    logger.warning(
                        f"{share:.1%} of the sentences choose the {name} order {order}: a larger diversity_weight "
                        f"(now {self.model.config.diversity_weight}) spreads them over the others"
                    )
            self.reset_sums()
        super().log(logs, *args, **kwargs)

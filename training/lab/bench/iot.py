"""What `sublayers bench iot` measures: models that choose an order for each sentence beside one with a fixed order."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sublayers.configuration.configuration_iot_seq2seq import IOTSeq2SeqConfig
from sublayers.configuration.configuration_sandwich_seq2seq import SandwichSeq2SeqConfig
from sublayers.configuration.order import interleaved
from sublayers.modeling.modeling_iot_seq2seq import IOTSeq2SeqForConditionalGeneration
from sublayers.modeling.modeling_sandwich_seq2seq import SandwichSeq2SeqForConditionalGeneration
from sublayers.training.flags import flag
from sublayers.training.lab.bench import contenders
from sublayers.training.lab.bench.flags import BenchFlags, size
from sublayers.training.lab.bench.seq2seq import compare, sizes_of, transformers_calls
from sublayers.training.metrics.timing import Call, Comparison

TRANSFORMER = "Transformer"
REMARK = (
    "Ratios are to the Transformer of the same sizes and weights, whose order is fixed. In training all orders run. In "
    "decoding every order has an equal share of the sentences, so that each batch mixes all of them; the predictor "
    "runs, but does not choose. Decoding makes the same number of tokens for every source."
)

ORDERS = "encoder:decoder, block orders with commas between them, the paper's two, three and four decoder orders"


@dataclass(kw_only=True)
class Flags(BenchFlags):
    """Flags of `sublayers bench iot`."""

    layers: int = size("layers", 6)
    hidden_size: int = size("hidden_size", 512)
    heads: int = size("heads", 4)
    vocab_size: int = size("vocab_size", 10152)
    new_tokens: int = size("new_tokens", 20)
    repeats: int = size("repeats", 5)
    shapes: list[str] = flag("rows x tokens", ["64x20"])


def default_orders(args: Flags) -> list[str]:
    """The paper's choices of two, three and four decoder orders (appendix A.3)."""
    return ["sf:csf,fcs", "sf:scf,csf,fcs", "sf:scf,fsc,csf,fcs"]


def build(args: Flags) -> dict[str, Any]:
    """Build the Transformer, and a model for each choice of orders such as `sf:csf,fcs`, all without dropout."""
    sizes = sizes_of(args) | {"intermediate_size": 2 * args.hidden_size}
    n = args.layers
    torch.manual_seed(0)
    fixed = SandwichSeq2SeqConfig(
        encoder_sublayer_order=interleaved(n), decoder_sublayer_order=interleaved(n, decoder=True), **sizes
    )
    models: dict[str, Any] = {TRANSFORMER: SandwichSeq2SeqForConditionalGeneration(fixed)}
    for orders in args.orders:
        encoder, decoder = (stack.split(",") for stack in orders.split(":"))
        torch.manual_seed(0)
        several = IOTSeq2SeqConfig(
            encoder_orders=encoder, decoder_orders=decoder, num_encoder_blocks=n, num_decoder_blocks=n, **sizes
        )
        models[orders] = IOTSeq2SeqForConditionalGeneration(several)
    return contenders.place(models, args)


def spread_orders(model: Any, batch: dict[str, Tensor]) -> dict[str, Tensor | int]:
    """Give every order of both stacks an equal share of the batch, if the model has several."""
    rows = torch.arange(len(batch["input_ids"]), device=batch["input_ids"].device)
    if not isinstance(model, IOTSeq2SeqForConditionalGeneration):
        return {}
    numbers = (len(orders) for orders in model.config.stack_orders)
    return {
        f"forced_{stack}_order": rows % number if number > 1 else 0
        for stack, number in zip(("encoder", "decoder"), numbers, strict=True)
    }


def comparison(args: Flags) -> Comparison:
    """Compare models that choose orders with the Transformer, task by task and shape by shape."""
    models = build(args)

    def calls(model: Any, batch: dict[str, Tensor]) -> dict[str, Call]:
        return transformers_calls(model, batch, args.new_tokens, **spread_orders(model, batch))

    return compare(models, {name: [TRANSFORMER] for name in args.orders}, calls, args, REMARK)

"""What trained encoder-decoders write: in the orders that they choose for each source, or in one for all."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate import PartialState
from tqdm.auto import tqdm
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, BatchEncoding, PreTrainedConfig, PreTrainedTokenizerBase

from sublayers import IOTSeq2SeqConfig, IOTSeq2SeqForConditionalGeneration
from sublayers.auto_models import families
from sublayers.configuration.configuration_reordered_seq2seq import TARGET_TOKENIZER, ReorderedSeq2SeqConfig
from sublayers.configuration.order import Order
from sublayers.hub.loading import load
from sublayers.training.trainers.pair_trainer import in_new_tokens

if TYPE_CHECKING:
    from sublayers.training.lab.studies.orders import StudyOrdersArguments

# flags that are settings of `generate`
OPTIONS = ("num_beams", "length_penalty")


def paths_of(config: PreTrainedConfig) -> list[tuple[int, int]]:
    """List the pairs of an encoder and a decoder order that a model can write in, by their numbers."""
    if not isinstance(config, IOTSeq2SeqConfig):
        return [(0, 0)]
    # the authors' code, which pairs orders in training, writes with the encoder's first
    return [(m if config.order_paths == "product" else 0, n) for m, n in config.paths]


@dataclass
class Writer:
    """A trained encoder-decoder that writes texts.

    Args:
        model: the encoder-decoder, on its device.
        tokenizers: of sources and of targets.
        max_source_length: most tokens of a source, special ones included; longer ones are cut.
        args: the flags of the study: how many sources are decoded at once, and what replaces the model's own settings.
        trained: how many of its paths, the first ones, it learnt to write in.
    """

    model: Any
    tokenizers: tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]
    max_source_length: int
    args: "StudyOrdersArguments"
    trained: int

    @property
    def paths(self) -> list[tuple[int, int]]:
        """The pairs of an encoder and a decoder order, by their numbers, that it can write in."""
        return paths_of(self.model.config)

    @property
    def predicts(self) -> bool:
        """Whether it chooses among several paths for each source."""
        config = self.model.config
        return isinstance(config, IOTSeq2SeqConfig) and any(config.num_predicted_orders)

    @property
    def is_undecided(self) -> bool:
        """Whether it learnt several paths, and nothing says which to take (setting 1 of the paper's section 5.4)."""
        return self.trained > 1 and not self.predicts

    def write(self, sources: list[str], desc: str, path: tuple[int, int] | None = None) -> list[str]:
        """Write a text for each source, all on one path or, without, each on the model's own."""
        options = {name: getattr(self.args, name) for name in OPTIONS if getattr(self.args, name) is not None}
        if self.args.max_length is not None:
            # the flag counts the token that starts a text
            options["max_new_tokens"] = self.args.max_length - 1
        if path is not None and len(self.paths) > 1:
            options |= {"forced_encoder_order": path[0], "forced_decoder_order": path[1]}
        texts = [""] * len(sources)
        for rows, batch in self._batches(sources, desc):
            ids = self.model.generate(**batch, **options)
            written = self.tokenizers[1].batch_decode(ids, skip_special_tokens=True)
            for row, text in zip(rows, written, strict=True):
                texts[row] = text
        return texts

    @torch.no_grad()
    def choose(self, sources: list[str], desc: str) -> list[int]:
        """Find the number of the path that the model predicts for each source; the encoder alone runs."""
        chosen, paths = [0] * len(sources), self.paths
        for rows, batch in self._batches(sources, desc):
            output = self.model.get_encoder()(**batch)
            orders = zip(output.encoder_order.tolist(), output.decoder_order.tolist(), strict=True)
            for row, path in zip(rows, orders, strict=True):
                chosen[row] = paths.index(path)
        return chosen

    def _batches(self, sources: list[str], desc: str) -> Iterator[tuple[list[int], BatchEncoding]]:
        tokenizer, config = self.tokenizers[0], self.model.config
        limit = min(self.max_source_length, config.max_position_embeddings)
        ids = tokenizer(sources, truncation=True, max_length=limit).input_ids
        # sources go from long to short, so that batches have little padding
        order = np.argsort([-len(row) for row in ids], kind="stable").tolist()
        for start in tqdm(range(0, len(ids), self.args.batch_size), desc):
            rows = order[start : start + self.args.batch_size]
            batch = tokenizer.pad({"input_ids": [ids[row] for row in rows]}, return_tensors="pt")
            yield rows, batch.to(self.model.device)


def load_writer(folder: str, args: "StudyOrdersArguments", max_source_length: int) -> Writer:
    """Load a model that `sublayers seq2seq` left in a folder; if it learnt one path only, also for `args.orders`.

    Raises:
        ValueError: it is not one of this library's encoder-decoders, or has other sublayers than the orders.
        OSError: there is no model.
    """
    model = load(AutoModelForSeq2SeqLM, folder)
    known = families(AutoModelForSeq2SeqLM)
    if model.config.model_type not in known:
        raise ValueError(f"{folder} is a {model.config.model_type}; give models of {', '.join(known)}")
    source = target = load(AutoTokenizer, folder)
    if model.config.encoder_vocab_size:
        target = load(AutoTokenizer, folder, subfolder=TARGET_TOKENIZER)
    model.generation_config = in_new_tokens(model.generation_config)
    model.to(PartialState().device).eval()
    trained = len(paths_of(model.config))
    if args.orders and trained == 1:
        model = allow_decoder_orders(model, args.orders)
    return Writer(model, (source, target), max_source_length, args, trained)


def allow_decoder_orders(model: Any, orders: list[str]) -> IOTSeq2SeqForConditionalGeneration:
    """Build a model that was trained in one order anew, so that its decoder can be forced into others.

    These are orders of a block or of the whole decoder. The one that was trained comes first in any case.

    Raises:
        ValueError: an order that does not run the sublayers of the trained one.
    """
    encoder, decoder = ([order.letters for order in orders] for orders in model.config.stack_orders)
    others: list[str] = []
    for order in orders:
        whole = Order(order).letters * max(len(decoder[0]) // len(Order(order)), 1)
        if sorted(whole) != sorted(decoder[0]):
            raise ValueError(f"--orders {order} does not repeat to the sublayers of {decoder[0]}; give another order")
        others += [whole] if whole not in [*decoder, *others] else []
    shared = {f.name: getattr(model.config, f.name) for f in fields(ReorderedSeq2SeqConfig)}  # type: ignore[arg-type]
    shared |= {"encoder_orders": encoder, "decoder_orders": [*decoder, *others], "predict_order": False}
    config = IOTSeq2SeqConfig(**shared, num_encoder_blocks=1, num_decoder_blocks=1)
    reordered = IOTSeq2SeqForConditionalGeneration(config)
    reordered.load_state_dict(model.state_dict())
    reordered.generation_config = model.generation_config
    return reordered.to(model.device).eval()

"""What a conversion has to show: where every tensor went, and that the result computes what its source does."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel

from sublayers.convert.weights import BUFFERS, UNUSED, Pieces
from sublayers.families import head_of

# the largest difference, as a share of the outputs' size
TOLERANCE = 1e-4
# why a tensor was left out
LACKED = "of sublayers that the order lacks"
# dropouts that have no place here, and one that LightConv's attention shares with its kernels
LOSABLE = ("encoder_layerdrop", "decoder_layerdrop", "input_dropout", "attention_dropout")


class ConversionReport(NamedTuple):
    """Where every tensor of a source went, and where every parameter of the model comes from.

    Attributes:
        taken_over: by the source's name, the parameters that were made from it, and how.
        left_out: by the source's name, why.
        new: parameters with random weights.
        not_followed: by the source's name, the share of each dropout that the model does not have in training.
    """

    taken_over: dict[str, dict[str, str]]
    left_out: dict[str, str]
    new: list[str]
    not_followed: dict[str, float]

    def summary(self) -> str:
        """Count what was taken over, and name all that was not."""
        total = len(self.taken_over) + len(self.left_out)
        lines = [f"taken over: {len(self.taken_over)} of {total} tensors of the source"]
        for reason in dict.fromkeys(self.left_out.values()):
            names = [name for name, found in self.left_out.items() if found == reason]
            lines.append(f"left out, {reason}: {', '.join(names)}")
        if self.new:
            lines.append(f"new, with random weights: {', '.join(self.new)}")
        if self.not_followed:
            lines.append(f"not followed in training: {', '.join(f'{k}={v}' for k, v in self.not_followed.items())}")
        return "\n".join(lines)

    def warning(self) -> str:
        """Name the sublayers that are random, and those that were dropped; empty where there are none."""
        random = _distinct(r".*?layers\.\d+", self.new)
        dropped = _distinct(r".*?\.\d+\.\w+", [name for name, why in self.left_out.items() if why == LACKED])
        named = {"has random weights in": random, "dropped": dropped}
        return " and ".join(f"{what} {', '.join(names)}" for what, names in named.items() if names)


def report_on(
    weights: Mapping[str, torch.Tensor],
    model: PreTrainedModel,
    pieces: Pieces,
    settings: Mapping[str, Any] = {},
    missing: Collection[str] = (),
) -> ConversionReport:
    """Report on a conversion.

    Args:
        weights: The source's tensors.
        model: What came out.
        pieces: What its parameters were taken from.
        settings: What the source's configuration says.
        missing: Names among `weights` that the source's files lack, and that are random therefore.

    Raises:
        ValueError: a parameter that is not, number by number, what it was taken from.
    """
    own = model.state_dict()
    taken_over: dict[str, dict[str, str]] = {}
    for parameter, piece in pieces.items():
        if not _same(own[parameter], piece.tensor):
            raise ValueError(f"{parameter} is not what it was copied from; please report this")
        for name in piece.names:
            if name not in missing:
                taken_over.setdefault(name, {})[parameter] = piece.how
    left_out = {name: _why(name, weights, taken_over) for name in weights if name not in {*taken_over, *missing}}
    known = {parameter for parameters in taken_over.values() for parameter in parameters}
    known |= {parameter for parameter, piece in pieces.items() if not piece.names}
    new, ours = [name for name in own if name not in known], model.config.to_dict()
    dropouts = {name: value for name in LOSABLE if isinstance(value := settings.get(name), int | float)}
    lost = {name: value for name, value in dropouts.items() if value not in (0, ours.get(name))}
    return ConversionReport(taken_over, left_out, new, lost)


def _distinct(start: str, names: Iterable[str]) -> list[str]:
    """Find the starts of names that match, once each."""
    return [*dict.fromkeys(found[0] for name in names if (found := re.match(start, name)))]


def _same(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Compare number by number; a checkpoint of a training that diverged holds some that are none."""
    return first.shape == second.shape and torch.allclose(first, second.to(first.dtype), 0, 0, equal_nan=True)


def _why(name: str, weights: Mapping[str, torch.Tensor], taken_over: Collection[str]) -> str:
    """Say why a tensor was left out."""
    if name.endswith(BUFFERS):
        return "a buffer without information"
    if re.search(UNUSED, name):
        return "of a sublayer that the source lacks"
    if re.search(r"\.\d+\.", name):
        return LACKED
    if equal := next((other for other in taken_over if _same(weights[other], weights[name])), None):
        return f"equal to {equal}"
    return "without a place in the model" if weights[name].any() else "all zero"


# the longest row, in tokens
LONGEST_WINDOW = 512
# how many tokens are written, the first after the prompt and the others with a cache; and with how many beams
GENERATED, BEAMS = 3, 3
# the rows of the batch, by where their padding is; the first has none
RIGHT, LEFT, BETWEEN = 1, 2, 3


def draw(model: PreTrainedModel, source: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Draw random tokens with their masks, a row for each place of padding, as inputs of a model and its source."""
    config: Any = source.config
    # tokens see beyond a window, unless that would take long
    window = min(getattr(model.config, "attention_window", None) or 0, LONGEST_WINDOW)
    length = min(13 + window, model.config.max_position_embeddings)
    mask = torch.ones(4, length, dtype=torch.long)
    mask[RIGHT, length - length // 2 :] = mask[LEFT, : length // 2] = mask[BETWEEN, 1:-1:3] = 0
    if head_of(type(source).__name__) == "ForMultipleChoice":
        mask = mask[:, None].repeat(1, 2, 1)
    generator = torch.Generator().manual_seed(0)

    def tokens(number: int) -> torch.Tensor:
        ids = torch.randint(number, mask.shape, generator=generator)
        if (padding := config.pad_token_id) is None:
            return ids
        # some sources take the token for padding wherever it stands, and find the end of a row by it
        return torch.where(ids == padding, (ids + 1) % number, ids).masked_fill(mask == 0, padding)

    inputs = {"input_ids": tokens(config.vocab_size), "attention_mask": mask}
    if config.is_encoder_decoder:
        targets = tokens(len(source.get_output_embeddings().weight))
        return inputs | {"decoder_input_ids": targets, "decoder_attention_mask": mask}
    if segments := config.to_dict().get("type_vocab_size"):
        inputs["token_type_ids"] = torch.randint(segments, mask.shape, generator=generator)
    return inputs


def measures_places(config: Any) -> bool:
    """Say whether windows, biases or kernels count the places between tokens, padding among them."""
    told = config.to_dict()
    return any(map(told.get, ("attention_window", "relative_attention_num_buckets", "short_kernel_size")))


def generate_both(
    model: PreTrainedModel, source: PreTrainedModel, inputs: Mapping[str, torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Let a model continue some prompts, with its cache, and its source do the same without one.

    The rows of a decoder end at the same place, padded on the left. An encoder-decoder also writes with beams. Each
    model has its own settings of generation, but neither samples, and neither stops early.

    Yields:
        What is compared, and both scores of it: of each next token (rows, vocabulary), as long as both write the same;
        of whole beams (rows,).
    """
    mask, has_source = inputs["attention_mask"], source.config.is_encoder_decoder
    places = mask.argsort(dim=1, descending=has_source, stable=True)
    # no more than what leaves room to write
    places = places[:, -(model.config.max_position_embeddings - GENERATED) :]
    prompt = {name: inputs[name].gather(1, places) for name in ("input_ids", "attention_mask")}
    start = 1 if has_source else places.shape[1]
    options = {"max_new_tokens": GENERATED, "pad_token_id": source.config.pad_token_id or 0}
    # nothing is chosen by chance, and nothing ends early or by force
    options |= {"do_sample": False, "return_dict_in_generate": True, "output_scores": True}
    unset = ("temperature", "top_k", "top_p", "eos_token_id", "forced_eos_token_id", "max_length")

    def write(writer: Any, beams: int) -> Any:
        # some sources write other words from a cache
        return writer.generate(**prompt, **options, **dict.fromkeys(unset), num_beams=beams, use_cache=writer is model)

    found, expected = write(model, 1), write(source, 1)
    for step, scores in enumerate(zip(found.scores, expected.scores, strict=True)):
        # words that score alike may be written in another sequence
        alike = (found.sequences == expected.sequences)[:, : start + step].all(1)
        # what is forbidden scores minus infinity
        ours, theirs = (each[alike].nan_to_num(float("nan"), neginf=0) for each in scores)
        if alike.any():
            yield "the score of a generated token", ours, theirs
    if has_source:
        yield "the score of beams", write(model, BEAMS).sequences_scores, write(source, BEAMS).sequences_scores


@torch.no_grad()
def compare(model: PreTrainedModel, source: PreTrainedModel, inputs: Mapping[str, torch.Tensor] | None = None) -> float:
    """Run a model and its source on inputs, by default random tokens padded on the right, on the left and in between.

    The source runs on each row without its padding, and with it as far as it says what that means: encoder-decoders
    count padding on the left and in between as positions, others are told them; who pools reads the ends of a row.
    What both can write after the same prompts is compared, too, see `generate_both`.

    Returns:
        The largest difference of an output at a token that is not padding, relative to the largest number there.

    Raises:
        ValueError: it is over the tolerance.
    """
    inputs = {name: tensor.to(source.device) for name, tensor in (inputs or draw(model, source)).items()}
    ours = model.eval()(**inputs)
    source.eval()
    differences, sizes = defaultdict(list), defaultdict(list)
    ours_have_states = model.config.to_dict().get("recurrence") is not None

    def note(name: str, found: torch.Tensor, expected: torch.Tensor) -> None:
        differences[name].append((found - expected).abs().max())
        sizes[name].append(expected.abs().max())

    for row, mask in enumerate(inputs["attention_mask"]):
        padded = {name: tensor[row : row + 1] for name, tensor in inputs.items()}
        real = mask.view(-1, mask.shape[-1])[0].bool()
        has_gaps = bool((real[1:] != real[:-1]).sum() > 1)
        without = source(**{name: tensor[..., real] for name, tensor in padded.items()})
        if not source.config.is_encoder_decoder:
            places = (padded["attention_mask"].cumsum(-1) - 1).clamp(min=0)
            # not every head for multiple choice takes them in three dimensions
            padded["position_ids"] = places.flatten(0, -2) + model.config.position_offset
        # transformers' recurrences read padding between tokens
        is_told = "position_ids" in padded and not (has_gaps and ours_have_states)
        with_padding = source(**padded) if (real[0] and not has_gaps) or is_told else {}
        for name, expected in without.items():
            # a load-balancing loss is that of all rows
            if not isinstance(expected, torch.Tensor) or name == "aux_loss":
                continue
            found = ours[name][row : row + 1]
            of_tokens = found.shape != expected.shape
            if not (has_gaps and measures_places(model.config)):
                note(name, found[:, real] if of_tokens else found, expected)
            if of_tokens and name in with_padding:
                note(name, found[:, real], with_padding[name][:, real])
            elif has_gaps and name in with_padding:
                note(name, found, with_padding[name])
    if model.can_generate() and source.can_generate():
        for name, found, expected in generate_both(model, source, inputs):
            note(name, found, expected)
    largest, tolerance = 0.0, max(TOLERANCE, 4 * torch.finfo(source.dtype).eps)
    for name, of_rows in differences.items():
        # unlike Python's, this largest number of some is NaN if one is
        difference = (torch.stack(of_rows).max() / torch.stack(sizes[name]).max()).item()
        if not difference <= tolerance:
            raise ValueError(f"{name} differs from the source's by {difference:.1e} of its size; nothing is kept")
        largest = max(largest, difference)
    return largest

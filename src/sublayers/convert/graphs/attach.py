"""Graphs for a model in memory: in the runtime that is named, or in those that are measured to be fastest."""

import json
import platform
import shutil
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from math import log2
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from sublayers.convert.graphs.program import Finished, check, draw_inputs, longest, runtime as runtime_of, trace
from sublayers.extras import require
from sublayers.families import head_of
from sublayers.modeling.graph_sessions import TORCH, Batch, Graphs, Run, cache_folder, machine, processor
from sublayers.modeling.modeling_sublayers import SublayersPreTrainedModel

AUTO, FORMS = "auto", ("onnx", "openvino")
# heads that write token by token, with a cache, which graphs lack
WRITERS = ("ForCausalLM", "ForConditionalGeneration")
# what decides how fast a graph is, and how it is written
DECISIVE = ("sublayers", "torch", "transformers", "onnx", "onnxruntime", "onnxscript", "openvino", "nncf")
# rows that are measured, and the tokens of short and long texts where no texts are given
ROWS, SHORT, LONG = (1, 8, 32, 100), (8, 24), (64, 192)
# lengths that take turns, more of them in few rows: OpenVINO takes longer where the length is another than before
TURNS, MORE_TURNS, FEW = 2, 4, 8
# seconds of all measuring, and the most calls of a runtime in a cell
BUDGET, CALLS = 20.0, 100
# with fewer texts, ranks and neighbours say little
LEAST_TEXTS, NEIGHBOURS = 20, 10


def attach(
    model: SublayersPreTrainedModel,
    method: str,
    runtime: str,
    int8: bool = False,
    texts: Sequence[dict[str, torch.Tensor]] = (),
    least_agreement: float = 0.95,
) -> None:
    """Give a model the graphs through which `method` runs from now on.

    The graphs lie in a folder beside transformers' cache, by the weights and the versions of what writes and runs them,
    and so does what was chosen on this machine: next time, nothing is written or measured.

    Args:
        model: of this package.
        method: its `forward`, or another that computes one token alone.
        runtime: one of `FORMS`, or `AUTO`: all that are installed, and torch, each where it is fastest.
        int8: whether linear maps and embeddings have 8 bits in graphs.
        texts: batches of tokens; `AUTO` measures at their lengths, and `int8` is compared with 32 bits on them.
        least_agreement: the least of what `agreement` finds for `int8`.

    Raises:
        ModuleNotFoundError: the runtime is not installed.
        ValueError: the model writes token by token, reads several texts in a row, or is not in 32 bits on a CPU; its
            graph gives other outputs; or, with `int8`, there are too few texts, or it agrees too little.
    """
    name = type(model).__name__
    if head_of(name) in WRITERS:
        raise ValueError(f"{name} writes token by token with a cache, which graphs lack; use runtime='torch'")
    if model.config.is_encoder_decoder or head_of(name) == "ForMultipleChoice":
        raise ValueError(f"{name} reads more than one text in a row, and graphs read one; use runtime='torch'")
    number = sum(len(batch["input_ids"]) for batch in texts)
    if int8 and number < LEAST_TEXTS:
        raise ValueError(
            f"int8 is compared on texts, and {number} are too few; give verify={LEAST_TEXTS} or more of them"
        )
    model.graphs = None
    if (model.dtype, model.device.type) != (torch.float32, "cpu"):
        raise ValueError(
            f"{name} is in {model.dtype} on {model.device}, and graphs run in 32 bits on a CPU; use runtime='torch', "
            "or model.float() and model.to('cpu') before"
        )
    if int8 and _lacks_vnni():
        print("this processor has no VNNI, so 8 bits may be no faster than 32; runtime='auto' measures both")
    forms = [form for form in FORMS if runtime in (form, AUTO) and _is_there(form, runtime)]
    folder = cache_folder() / _fingerprint(model, method)
    halves = _halves(model, texts)
    # for texts of other lengths, to the nearest power of two, another runtime may be fastest
    powers = "-".join(str(2 ** round(log2(half.mean()))) for half in halves)
    measured = f" {powers} tokens {torch.get_num_threads()} threads" if runtime == AUTO else ""
    kept = folder / f"{runtime}{' int8' if int8 else ''}{measured}.json"
    described = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    if runtime == AUTO and described and described["machine"] != machine():
        print(f"{kept} was chosen on {described['machine']}, so it is measured again here")
        described = {}
    opened: dict[str, Run] = {}
    if not described:
        files = _write(model, method, folder, forms, int8, runtime)
        names = [name for name in files if not int8 or name.endswith("int8")]
        inputs = [*draw_inputs(_program(model, method), 1, 1)]
        described = {"architecture": name, "method": method, "inputs": inputs, "files": files}
        if runtime == AUTO:
            measured_graphs = Graphs(folder, **described, routes=[])
            described |= {"routes": _choose(model, measured_graphs, names, halves), "machine": machine()}
            opened = measured_graphs.runs
        else:
            described["routes"] = [(1, 1, names[0])]
        chosen = {name for *_, name in described["routes"]}
        described["files"] = {name: paths for name, paths in files.items() if name in chosen}
        # what could not be written may be the next time
        if {name.split()[0] for name in files} == {*forms}:
            folder.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
    graphs = Graphs(folder, **described)
    graphs.runs = {name: run for name, run in opened.items() if name in graphs.files}
    graphs.open()
    graphs.is_current(model)
    if int8:
        _compare(model, method, graphs, texts, least_agreement)
    if runtime == AUTO:
        told = ", ".join(f"{rows} x {tokens} {name}" for rows, tokens, name in graphs.routes)
        print(f"rows x tokens and where they run: {told}; kept in {kept.parent}")
    model.graphs = graphs


def agreement(first: np.ndarray, second: np.ndarray) -> dict[str, float]:
    """Compare what two graphs give for the same texts: vectors (texts, size), or scores (texts, 1).

    Returns:
        For vectors the mean and the least `cosine`; the `rank correlation` of the similarities of all pairs of texts,
        or of scores; and the share of each text's ten nearest, or of the ten best, that are the `same ten`.
    """
    if first.shape[1] == 1:
        order = [np.argsort(-scores[:, 0], kind="stable")[:NEIGHBOURS] for scores in (first, second)]
        return {"rank correlation": _rank_correlation(first, second), "same ten": _overlap(*order)}
    units = [vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12) for vectors in (first, second)]
    cosines = (units[0] * units[1]).sum(1)
    similar = [unit @ unit.T for unit in units]
    pairs = np.triu_indices(len(first), 1)
    nearest = [np.argsort(-(each - 9 * np.eye(len(each))), kind="stable")[:, :NEIGHBOURS] for each in similar]
    return {
        "cosine": float(cosines.mean()),
        "least cosine": float(cosines.min()),
        "rank correlation": _rank_correlation(similar[0][pairs], similar[1][pairs]),
        "same ten": float(np.mean([_overlap(*rows) for rows in zip(*nearest, strict=True)])),
    }


def _is_there(form: str, runtime: str) -> bool:
    try:
        require(form)
    except ModuleNotFoundError as error:
        if runtime == form:
            raise
        print(f"{form} is left out: {error}")
        return False
    return True


def _lacks_vnni() -> bool:
    """Say whether this is an x86 processor without instructions for products of 8 bits, as far as the system tells."""
    return platform.machine() == "x86_64" and "vnni" not in processor().get("flags", "vnni")


def _fingerprint(model: PreTrainedModel, method: str) -> str:
    """Name a folder by all that its graphs depend on."""
    # graphs of another folder change nothing
    config = model.config.to_dict() | {"graphs": {}}
    digest = sha256(f"{type(model).__name__} {method} {json.dumps(config, sort_keys=True)}".encode())
    for package in DECISIVE:
        try:
            digest.update(f"{package} {version(package)}".encode())
        except PackageNotFoundError:
            digest.update(package.encode())
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data if tensor.numel() else b"")
    return digest.hexdigest()[:32]


def _program(model: PreTrainedModel, method: str) -> Finished:
    return Finished(model, getattr(model, method), lambda outputs, inputs: outputs)


def _write(
    model: PreTrainedModel, method: str, folder: Path, forms: Iterable[str], int8: bool, runtime: str
) -> dict[str, list[str]]:
    """Write graphs into the folder, but for those that are there, and name their files."""
    finished, files = _program(model, method).eval(), {}
    cache_folder().mkdir(parents=True, exist_ok=True)
    program: Any = None
    for form in tqdm(forms, "writing graphs", leave=False):
        module = runtime_of(form)
        stem, ending = Path(module.FILE).stem, Path(module.FILE).suffix
        try:
            with TemporaryDirectory(dir=cache_folder()) as place:
                made = Path(place, form)
                made.mkdir()
                full = made / module.FILE
                if not (folder / form / module.FILE).exists():
                    program = program or trace(finished)
                    module.write(program, full)
                    check(module.load(full), finished)
                    _move(made, folder / form, module.FILE)
                small = f"{stem}_quantized{ending}"
                if int8 and not (folder / form / small).exists():
                    module.quantize(folder / form / module.FILE, made / small)
                    _move(made, folder / form, small)
        except Exception as error:
            said = f"{type(model).__name__} cannot be a graph of {form}: {str(error).splitlines()[0]}"
            if runtime == form:
                raise ValueError(f"{said}; use runtime='torch'") from error
            print(f"{said}; it is left out")
            continue
        for name, one in {form: stem, f"{form} int8": f"{stem}_quantized"}.items():
            # the graph's own file first
            found = sorted((folder / form).glob(f"{one}.*"), key=lambda path: path.name != f"{one}{ending}")
            if found and (int8 or name == form):
                files[name] = [f"{form}/{path.name}" for path in found]
    return files


def _move(made: Path, folder: Path, last: str) -> None:
    """Move files into the folder; where the last one is, all are."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(made.iterdir(), key=lambda path: path.name == last):
        shutil.move(path, folder / path.name)


def _choose(
    model: PreTrainedModel, graphs: Graphs, names: Sequence[str], halves: Sequence[np.ndarray]
) -> list[tuple[int, int, str]]:
    """Measure torch and the graphs for one text and for batches of short and of long ones: what is fastest in each."""
    method = getattr(model, graphs.method)

    def run_torch(batch: Batch) -> Any:
        with torch.inference_mode():
            return method(**{name: torch.from_numpy(rows) for name, rows in batch.items()})

    calls: dict[str, Callable[[Batch], Any]] = {TORCH: run_torch}
    graphs.runs = {name: graphs.session(name) for name in names}
    calls |= graphs.runs
    cells = _cells(model, graphs.inputs, halves)
    routes: list[tuple[int, int, str]] = []
    end, slowest = perf_counter() + BUDGET, 0.0
    is_training = model.training
    model.eval()
    for i, (tokens, batches) in enumerate(tqdm(cells, "measuring runtimes", leave=False)):
        size = sum(batch["input_ids"].size for batch in batches)
        left = end - perf_counter()
        # calls of each that are not timed, and as many that are
        if routes and 2 * slowest * size * len(calls) > left:
            break
        times = _times(calls, batches, left / (len(cells) - i))
        slowest = len(batches) * max(times.values()) / size
        routes.append((len(batches[0]["input_ids"]), tokens, min(times, key=times.__getitem__)))
    model.train(is_training)
    return routes


def _times(calls: dict[str, Callable[[Batch], Any]], batches: Sequence[Batch], seconds: float) -> dict[str, float]:
    """Take the median time of each call of batches, for about some seconds.

    They take turns, since a machine is not always equally fast. Before each call is a pooling in torch, whose threads
    wait for more work a while.
    """
    states, end = torch.ones(1 << 18), perf_counter() + seconds
    for call in calls.values():
        for batch in batches:
            call(batch)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(max(1, CALLS // len(batches))):
        for name, call in calls.items():
            for batch in batches:
                states.mean()
                before = perf_counter()
                call(batch)
                times[name].append(perf_counter() - before)
        if perf_counter() > end:
            break
    return {name: median(found) for name, found in times.items()}


def _halves(model: PreTrainedModel, texts: Sequence[dict[str, torch.Tensor]]) -> list[np.ndarray]:
    """Give the lengths of the shorter half of the texts and of the longer one, or made ones without texts."""
    if not texts:
        most = longest(model.config) or LONG[1]
        return [np.arange(each, until + 1).clip(max=most) for each, until in (SHORT, LONG)]
    lengths = np.sort(np.concatenate([batch["attention_mask"].sum(1).numpy() for batch in texts]))
    return [half for half in np.array_split(lengths, 2) if len(half)]


def _cells(model: PreTrainedModel, inputs: Sequence[str], halves: Sequence[np.ndarray]) -> list[Any]:
    """Draw batches with these lengths, small ones first: mean tokens of a row, and the inputs of some batches."""
    generator, config = np.random.default_rng(0), model.config
    cells = []
    for half in halves:
        for rows in ROWS:
            turns = MORE_TURNS if rows <= FEW else TURNS
            # rows lie evenly, and those of all turns between each other
            places = (np.arange(turns * rows) + 0.5) / (turns * rows) * len(half)
            drawn = half[places.astype(int)][::-1].reshape(rows, turns)
            batches = []
            for lengths in drawn.T:
                mask = (np.arange(lengths.max()) < lengths[:, None]).astype(np.int64)
                tokens = generator.integers(config.vocab_size, size=mask.shape) * mask
                named = {"input_ids": tokens, "attention_mask": mask, "token_type_ids": np.zeros_like(mask)}
                batches.append({name: named[name] for name in inputs})
            cells.append((max(1, round(drawn.mean())), batches))
    return sorted(cells, key=lambda cell: cell[1][0]["input_ids"].size)


def _compare(
    model: PreTrainedModel, method: str, graphs: Graphs, texts: Sequence[dict[str, torch.Tensor]], least: float
) -> None:
    """Print how 8 bits agree with 32, and refuse too little. Raises a ValueError then."""
    called = getattr(model, method)
    with torch.inference_mode():
        full = np.concatenate([_vectors(called(**batch), batch) for batch in texts])
    for name, run in sorted(graphs.runs.items()):
        rows = [{each: batch[each].numpy() for each in graphs.inputs} for batch in texts]
        outputs = [run(batch) for batch in rows]
        found = agreement(
            full,
            np.concatenate(
                [
                    _vectors({key: torch.from_numpy(each) for key, each in output.items()}, batch)
                    for output, batch in zip(outputs, texts, strict=True)
                ]
            ),
        )
        told = ", ".join(f"{what} {value:.4f}" for what, value in found.items())
        print(f"{name} beside 32 bits, {len(full)} texts: {told}")
        decisive = found.get("cosine", found["rank correlation"])
        if not decisive >= least:
            raise ValueError(
                f"{name} agrees with 32 bits by {decisive:.4f} only, less than least_agreement={least}; lower that, or "
                "leave int8 out"
            )


def _vectors(outputs: Any, batch: dict[str, torch.Tensor]) -> np.ndarray:
    """Give a vector for each text: the first output, for tokens their mean."""
    first = next(output for output in outputs.values() if isinstance(output, torch.Tensor))
    if first.ndim == 3 and first.shape[1] == batch["attention_mask"].shape[1]:
        mask = batch["attention_mask"][..., None]
        first = (first * mask).sum(1) / mask.sum(1)
    return first.reshape(len(first), -1).float().numpy()


def _rank_correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Give Spearman's, where equal values have their mean rank."""
    ranks = [_ranks(values.ravel()) for values in (first, second)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[places]


def _overlap(first: np.ndarray, second: np.ndarray) -> float:
    return len({*first.tolist()} & {*second.tolist()}) / len(first)

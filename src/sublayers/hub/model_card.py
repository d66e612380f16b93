"""The card of a model: what it is, what it costs, where it comes from and what it scored."""

import json
from collections.abc import Iterable
from math import isfinite, prod
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple, NotRequired, TypedDict

from huggingface_hub import EvalResult, EvalResultEntry, ModelCard, ModelCardData, eval_result_entries_to_yaml
from huggingface_hub.dataclasses import validate_typed_dict
from huggingface_hub.errors import StrictDataclassError
from huggingface_hub.utils import yaml_dump
from safetensors import safe_open
from transformers import AutoConfig

from sublayers.configuration.alphabet import ALPHABET
from sublayers.configuration.configuration_reordered_bert import ReorderedBertConfig
from sublayers.configuration.configuration_sublayers import SublayersConfig
from sublayers.configuration.order import Order
from sublayers.configuration.sublayer_cost import cache_bytes, flops, read_positions
from sublayers.families import head_of
from sublayers.hub.card_text import plain, template
from sublayers.hub.loading import MODULES
from sublayers.hub.papers import citation, paper

CARD = "README.md"
# what a command leaves: its words, arguments, data, seeds and scores
RUN = "run.json"
LOSS_CURVE = "loss_curve.png"
# other files in that folder are the user's
EVAL_RESULTS = ".eval_results/sublayers.yaml"
# a card without this line is the user's, and is not replaced
GENERATED = (
    "<!-- Written by sublayers from this folder, anew with every save. Delete this line to keep your own text. -->"
)
# marks of cards that nobody has edited: ours, transformers' draft, and the Trainer's
DRAFTS = (GENERATED, "[More Information Needed]", "according to the information the Trainer had access to")
MEASURED = ("dataset", "split", "metric")
# by the end of the name of a model's class: the Hub's name for its task, and what it is for
HEAD_TASKS = {
    "ForCausalLM": ("text-generation", "a language model that continues texts"),
    "ForMaskedLM": ("fill-mask", "an encoder that fills in masked words"),
    "ForPreTraining": ("fill-mask", "an encoder with BERT's two heads of pre-training, to be fine-tuned"),
    "ForNextSentencePrediction": ("text-classification", "an encoder that says whether one text follows another"),
    "ForSequenceClassification": ("text-classification", "a classifier of texts"),
    "ForTokenClassification": ("token-classification", "a classifier of tokens"),
    "ForQuestionAnswering": ("question-answering", "an encoder that finds the answers to questions in a text"),
    "ForMultipleChoice": ("multiple-choice", "an encoder that chooses among several texts"),
    "ForConditionalGeneration": (None, "an encoder-decoder that writes a text from a text"),
    "Model": ("feature-extraction", "a body without a head, whose outputs are hidden states"),
}
# the class of sentence-transformers that opens a folder, by whether it holds a body
SENTENCE_TASKS = {
    True: ("SentenceTransformer", "sentence-similarity", "an encoder that turns a text into a vector"),
    False: ("CrossEncoder", "text-ranking", "an encoder that scores pairs of texts"),
}


class Part(TypedDict):
    """A part of a run's data: what it was for, its name, on the Hub its id and configuration, and what was read of it.

    Data that are `own` are files or folders of whoever trained. Rows of a stream are not counted, and not all rows make
    a part that is not `whole`.
    """

    role: str
    name: str
    id: NotRequired[str]
    config: NotRequired[str]
    own: NotRequired[bool]
    split: NotRequired[str]
    rows: NotRequired[int | None]
    whole: NotRequired[bool]


class Score(TypedDict):
    """What a run reached."""

    dataset: str
    id: NotRequired[str]
    config: NotRequired[str]
    split: str
    metric: str
    value: float | int
    seed: int


class Other(TypedDict):
    """Another model that was trained and measured alike."""

    name: str
    orders: str
    parameters: int
    gigaflops: float
    results: list[dict[str, Any]]


class Run(TypedDict, total=False):
    """What `run.json` holds, as far as a card shows it."""

    command: str
    date: str
    started_from: str | None
    base_model: str
    data: list[dict[str, Any]]
    seeds: list[int]
    settings: dict[str, str | float | int]
    arguments: dict[str, Any]
    machine: dict[str, str | float | int | None]
    results: list[dict[str, Any]]
    beside: list[dict[str, Any]]
    remarks: list[str]
    task: str | None
    languages: list[str] | None
    license: str


class Graph(NamedTuple):
    """A model that is a graph of another program: how it is used, in Markdown, and how large it is."""

    usage: str
    num_parameters: int


def read_run(folder: Path) -> dict[str, Any]:
    """Read the record of a run, if a folder has one; each text is of one line.

    Raises:
        ValueError: it is no JSON, or has values of other types.
    """
    file = folder / RUN
    if not file.exists():
        return {}
    try:
        known = {**plain(json.loads(file.read_text(encoding="utf-8")))}
        run = {name: known[name] for name in Run.__annotations__ if name in known}
        beside = run.get("beside", [])
        kinds: list[tuple[Any, Any]] = [(Run, [run]), (Part, run.get("data", [])), (Other, beside)]
        kinds += [(Score, part.get("results", [])) for part in (run, *beside)]
        for kind, records in kinds:
            for record in records:
                validate_typed_dict(kind, record)
        for score in [score for part in (run, *beside) for score in part.get("results", [])]:
            score["value"] = float(score["value"])
            if not isfinite(score["value"]):
                raise ValueError(f"{score['metric']} is {score['value']}")
    except (ArithmeticError, RecursionError, StrictDataclassError, TypeError, ValueError) as error:
        said = " ".join(str(error).split())
        raise ValueError(f"{file} is no record of a run ({said}); take it away, and the card says less") from error
    return run


def write_card(
    folder: str | Path, model_id: str | None = None, tags: Iterable[str] = (), graph: Graph | None = None
) -> None:
    """Write the card of the model in a folder, and its scores for leaderboards beside it.

    A card that was edited by hand is left alone, and a class from elsewhere gets none.

    Args:
        folder: of a model with safetensors; the card shows what `run.json` in it says of training.
        model_id: by which it will be loaded; by default the folder's name.
        tags: for the Hub, beside our own.
        graph: what there is instead of safetensors.

    Raises:
        ValueError: the record of the run cannot be read, or there is a card in another encoding than UTF-8.
    """
    # the package imports this module
    from sublayers import AUTO_CLASSES

    folder = Path(folder)
    run, model_id = read_run(folder), plain(model_id or folder.resolve().name)
    scores = _scores(run)
    _write_eval_results(folder, scores, run.get("date"))
    file = folder / CARD
    if file.exists() and not is_draft(file):
        return
    config = AutoConfig.from_pretrained(folder)
    architecture = (config.architectures or [""])[0]
    heads = {head.__name__: auto_class.__name__ for auto_class, head in AUTO_CLASSES.get(type(config), {}).items()}
    if architecture not in heads:
        return
    task, purpose = HEAD_TASKS[head_of(architecture)]
    task, opener = run.get("task", task), None
    if (folder / MODULES).exists():
        opener, task, purpose = SENTENCE_TASKS[head_of(architecture) == "Model"]
    drawn = stacks(config)
    data = ModelCardData(
        model_name=model_id,
        library_name=None if graph else "sentence-transformers" if opener else "transformers",
        license=run.get("license", "apache-2.0"),
        pipeline_tag=task,
        language=run.get("languages"),
        base_model=run.get("base_model"),
        datasets=sorted({part["id"] for part in run.get("data", []) if part.get("id")}) or None,
        metrics=sorted({score["metric"] for score in scores}) or None,
        tags=sorted({"sublayers", config.model_type, *tags}),
        eval_results=[
            EvalResult(
                task_type=task or "text2text-generation",
                dataset_type=score["id"] or "local",
                dataset_name=score["dataset"],
                dataset_config=score["config"] or None,
                dataset_split=score["split"],
                metric_type=score["metric"],
                metric_value=score["mean"],
            )
            for score in scores
        ]
        or None,
    )
    text = template(described=describe, scored=_scored).render(
        card_data=data.to_yaml(),
        generated=GENERATED,
        model_id=model_id,
        architecture=architecture,
        auto_class=heads[architecture],
        purpose=purpose,
        task=task,
        paper=paper(config.model_type),
        citation=citation(paper(config.model_type)),
        config=config,
        num_parameters=graph.num_parameters if graph else num_parameters(folder),
        usage=graph and graph.usage,
        opener=opener,
        has_loss_curve=(folder / LOSS_CURVE).exists(),
        has_tokenizer=(folder / "tokenizer_config.json").exists(),
        stacks=drawn,
        legend=legend(drawn),
        run=run,
        scores=scores,
        beside=[{**describe_model(folder), "name": model_id}, *run["beside"]] if run.get("beside") else [],
    )
    ModelCard(text).save(file)


def describe(part: dict[str, Any]) -> str:
    """Say what a part of a run's data is, and how much of it was read."""
    name = f"own data: {part['name']}" if part.get("own") else part["name"]
    is_whole, rows = part.get("whole", True), part.get("rows")
    if rows is None:
        return name if is_whole else f"{name}, a part of it"
    return f"{name}, {rows:,} rows" if is_whole else f"{name}, {rows:,} of its rows"


def is_draft(card: str | Path) -> bool:
    """Say whether a card is as a program wrote it, without edits by hand.

    Raises:
        ValueError: it is in another encoding than UTF-8.
    """
    try:
        text = Path(card).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{card} is not in UTF-8; save it in that encoding, or take it away") from error
    return any(draft in text for draft in DRAFTS)


def describe_model(folder: Path) -> dict[str, Any]:
    """Say what the model in a folder is, what it costs and what it scored: an `Other` for the cards of its rivals."""
    drawn = stacks(AutoConfig.from_pretrained(folder))
    # several orders of one side have the same sublayers
    sides = {stack["name"].partition(",")[0]: stack["costs"][0] for stack in drawn}
    return {
        "name": folder.resolve().name,
        "orders": ", ".join(f"{stack['name']} {stack['order']}" for stack in drawn),
        "parameters": num_parameters(folder),
        "gigaflops": sum(every for _, _, every, *_ in sides.values()),
        "results": read_run(folder).get("results", []),
    }


def num_parameters(folder: Path) -> int:
    """Count the parameters of the model in a folder; tied ones count once."""
    total = 0
    for file in folder.glob("model*.safetensors"):
        with safe_open(file, "pt") as weights:
            total += sum(prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118
    return total


def _scores(run: dict[str, Any]) -> list[dict[str, Any]]:
    """One score for each metric on each part of the data, over all seeds."""
    found: dict[tuple[str, ...], dict[int, float]] = {}
    for result in run.get("results", []):
        key = (result["dataset"], result.get("id", ""), result.get("config", ""), result["split"], result["metric"])
        found.setdefault(key, {})[result["seed"]] = result["value"]
    return [
        dict(zip(("dataset", "id", "config", "split", "metric"), key, strict=True))
        | {
            "mean": mean(values.values()),
            "deviation": stdev(values.values()) if len(values) > 1 else None,
            "seeds": ", ".join(map(str, values)),
        }
        for key, values in found.items()
    ]


def _scored(model: dict[str, Any], wanted: dict[str, Any]) -> str:
    """Write what a model has for a score of another, if it was measured."""
    same = [score for score in _scores(model) if all(score[name] == wanted[name] for name in MEASURED)]
    return f"{same[0]['mean']:.4g}" if same else ""


def _write_eval_results(folder: Path, scores: list[dict[str, Any]], date: str | None) -> None:
    """Write scores on data sets of the Hub as its leaderboards read them; where there are none, the file goes."""
    entries = [
        EvalResultEntry(
            dataset_id=score["id"],
            # the Hub's own benchmarks name a task by its configuration
            task_id=score["config"] or "default",
            value=score["mean"],
            date=date,
            # the metadata have no field for these
            notes=f"{score['metric']} on {score['split']}, mean over seeds {score['seeds']}",
        )
        for score in scores
        if score["id"]
    ]
    file = folder / EVAL_RESULTS
    if entries:
        file.parent.mkdir(exist_ok=True)
        file.write_text(yaml_dump(eval_result_entries_to_yaml(entries)), encoding="utf-8")
    else:
        file.unlink(missing_ok=True)


def stacks(config: SublayersConfig) -> list[dict[str, Any]]:
    """Each order in which a stack can run, drawn, with its costs at two lengths."""
    # this family has no memory
    sizes = config.sizes._replace(memory_length=None)._asdict()
    takes_mean = isinstance(config, ReorderedBertConfig) and config.tail_query == "mean"
    # relative positions have no limit
    lengths = sorted({min(length, config.max_position_embeddings or length) for length in (128, 512)})
    drawn = []
    for stack, order in named_orders(config):
        costs = []
        for length in lengths:
            gigaflops = [
                flops(order, length=length, read=read, takes_mean=takes_mean and name == "one", **sizes) / 1e9
                for name, read in read_positions(length).items()
            ]
            costs.append((length, cache_bytes(order, length=length, **sizes) / 2**20, *gigaflops))
        drawing = "".join(kind.square for kind in order.kinds)
        drawn.append({"name": stack, "order": str(order), "sublayers": len(order), "drawing": drawing, "costs": costs})
    return drawn


def legend(drawn: list[dict[str, Any]]) -> str:
    """Explain the letters and squares of what `stacks` drew."""
    used = set("".join(Order(stack["order"]).letters for stack in drawn))
    return ", ".join(f"{row.square} {row.name} (`{letter}`)" for letter, row in ALPHABET.items() if letter in used)


def named_orders(config: SublayersConfig) -> list[tuple[str, Order]]:
    """Name every order of a model by the stack that runs it."""
    if not config.is_encoder_decoder:
        return [("encoder" if config.model_type.endswith("bert") else "decoder", config.order)]
    sides = zip(("encoder", "decoder"), config.stack_orders, strict=True)
    return [
        (side if len(orders) == 1 else f"{side}, order {number}", order)
        for side, orders in sides
        for number, order in enumerate(orders)
    ]

"""`sublayers glue`: fine-tune a model on tasks of GLUE, evaluate it with their metrics, and write a submission."""

import json
from dataclasses import MISSING, dataclass
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, Literal

from rich.console import Console
from rich.table import Table
from transformers import PreTrainedTokenizerBase

from sublayers.training.data.glue import GLUE_TASKS, GlueDataArguments, load_task
from sublayers.training.flags import flag, parse_flags
from sublayers.training.trainers.arguments import FREE, FineTuningArguments, default
from sublayers.training.trainers.glue_runs import AXES, POINT, VALUES, Grid, TaskRuns, share
from sublayers.training.trials import TrialsArguments, check_done, open_study, run_trials

USAGE = "sublayers glue [SETTINGS.yaml] --task_name NAME --model_name_or_path MODEL [--name value ...]"


@dataclass
class GlueArguments(TrialsArguments):
    """Flags for what is fine-tuned how often."""

    _argument_group_name: ClassVar[str] = "task, model and grid"

    task_name: str = flag("all: as far as there are data", MISSING, choices=[*GLUE_TASKS, "all"])
    model_name_or_path: str = flag("model to fine-tune", MISSING)
    max_length: int = flag("tokens of a text or pair; the longer text is cut first", 128)
    seeds: list[int] = flag("one run each; default: --seed", [])
    learning_rates: list[float] = flag("grid; default: --learning_rate", [])
    batch_sizes: list[int] = flag("grid; default: --per_device_train_batch_size", [])
    epochs: list[float] = flag("grid; default: --num_train_epochs", [])
    select: Literal["median", "best"] = flag(
        "what decides on a point of the grid, and which of its runs is kept: the median over seeds, or the best run",
        "median",
    )


@dataclass
class GlueTrainingArguments(FineTuningArguments):
    """Arguments of one run; `do_eval` or `do_predict` alone leave training out."""

    output_dir: str = default("output_dir", "runs/glue")
    per_device_train_batch_size: int = default("per_device_train_batch_size", 32)

    def __post_init__(self):
        self.do_train = self.do_train or not (self.do_eval or self.do_predict)
        super().__post_init__()


FLAGS = (GlueArguments, GlueDataArguments, GlueTrainingArguments)


def main(argv: list[str]) -> dict[str, dict[str, Any]]:
    """Fine-tune a model on one task of GLUE or on all, once per seed and point of the grid, and evaluate every run.

    The best point has the best median over seeds of the metric that decides. Its median run, the lower one of an even
    number, or with `--select best` the best run of all, leaves model and tokenizer in the folder TASK of the output
    folder, and in `submission` and `submission.zip` its predictions for the test data, where there are any; that of
    MNLI also for the diagnostic data, AX. The same command goes on where it was killed. Processes that run it at the
    same time in the same folder share the runs.

    Args:
        argv: flags, after an optional .yaml or .json file with the same names; see `sublayers glue --help`.

    Returns:
        What `results.json` in the output folder holds, by task: the `split` and the `metric` that decide, the `best`
        point and all `points`, each with the `median`, the `seed` of the median run and the scores of all `runs`.

    Raises:
        FileExistsError: the output folder holds something else, or runs with other flags.
        FileNotFoundError: there are no data for a task.
        OSError: everything is done, but some task could not be published; or the storage cannot be reached.
        ValueError: bad flags, an unknown task, data that cannot be used (see `load_task`), or a run that failed.
    """
    run, data_args, args = parse(argv)
    # models and Trainers take seconds to import, for which --help does not wait
    from transformers import AutoTokenizer

    from sublayers.hub.loading import load
    from sublayers.training.metrics.glue import zip_submission

    folder = Path(str(args.output_dir))
    console = Console(quiet=args.process_index > 0)
    # whatever can be wrong with any task is said before the first training
    tokenizer = load(AutoTokenizer, run.model_name_or_path)
    # batches need a padding token, and decoders often have none
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    names = _task_names(run, data_args, console)
    _check_model(run, args, tokenizer, names)
    with args.main_process_first(desc="reading the data"):
        data = {name: load_task(name, data_args, args.do_train) for name in names}
    study = None
    if args.process_index == 0:
        flags = {**vars(run), **vars(data_args), **args.to_dict()}
        settings = {name: value for name, value in flags.items() if not name.startswith(FREE)}
        study = open_study("fine-tuning", folder, settings, run.storage, "maximize")
    runs = {name: TaskRuns(name, splits, tokenizer, run, data_args, args) for name, splits in data.items()}
    grid = Grid(runs, ["glue", *argv])
    if study is None:
        return grid.follow()
    points = product(runs, *(getattr(run, flag) for flag in VALUES.values()), run.seeds)
    tasks = [dict(zip(POINT, point, strict=True)) for point in points]
    check_done(run_trials(study, grid, folder, tasks, jobs=run.jobs))
    endings = [{"finish": name, "repository": each.repository} for name, each in runs.items()]
    unpublished = run_trials(study, grid, folder, endings)
    found = share({name: each.search(study) for name, each in runs.items()})
    (folder / "results.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    seeds = f"seeds {' '.join(map(str, run.seeds))}"
    axes = [axis.replace("_", " ") for axis in AXES]
    table = Table("task", "metric", "median", seeds, *axes, title="scores times 100")
    for column in table.columns:
        column.overflow = "fold"
    for name, each in runs.items():
        each.add_rows(table, found[name]["best"])
    console.print(table)
    console.print(f"models, predictions and all scores are in {folder}")
    if (folder / "submission").exists():
        missing = zip_submission(folder / "submission")
        others = f"; the benchmark also asks for {', '.join(missing)}" if missing else ""
        console.print(f"{folder / 'submission.zip'} holds the predictions{others}")
    if unpublished:
        # the other tasks do not wait for the Hub
        rest = "; ".join(f"{task['finish']} ({error})" for task, error in unpublished)
        raise OSError(f"all is trained, but some is not published: {rest}; the same command publishes what is missing")
    return found


def parse(argv: list[str]) -> tuple[GlueArguments, GlueDataArguments, GlueTrainingArguments]:
    """Read the command's flags, after an optional recipe or settings file.

    Raises:
        ValueError: unknown flags, an unknown task, files for several, a checkpoint, or a grid that repeats itself.
    """
    run, data_args, args = parse_flags(argv, FLAGS, USAGE, "glue")
    if data_args.files and run.task_name == "all":
        raise ValueError("files hold one task; give its --task_name, or for all a --data_dir")
    if (args.resume_from_checkpoint or "true").lower() not in ("true", "false"):
        raise ValueError(
            f"several runs cannot go on from {args.resume_from_checkpoint}; they do from where they stopped without it"
        )
    if run.epochs and args.max_steps > 0:
        raise ValueError(f"--max_steps {args.max_steps} leaves --epochs without effect; give one of them")
    arguments = {"seeds": "seed"} | {VALUES[axis]: argument for axis, argument in AXES.items()}
    for name, argument in arguments.items():
        values = getattr(run, name) or [getattr(args, argument)]
        setattr(run, name, values)
        if len(set(values)) < len(values):
            raise ValueError(f"--{name} {' '.join(map(str, values))} has a value twice; give each once")
        if name != "seeds" and min(values) <= 0:
            raise ValueError(f"--{name} {min(values)} is not a positive number; give another")
    return run, data_args, args


def _task_names(run: GlueArguments, data_args: GlueDataArguments, console: Console) -> list[str]:
    if run.task_name != "all":
        return [run.task_name]
    if data_args.data_dir is None:
        return list(GLUE_TASKS)
    missing = [name for name in GLUE_TASKS if data_args.folder(name) is None]
    if len(missing) == len(GLUE_TASKS):
        raise FileNotFoundError(f"there is no folder of any task in {data_args.data_dir}, such as cola or glue_cola")
    if missing:
        console.print(f"no data for {', '.join(missing)} in {data_args.data_dir}")
    return [name for name in GLUE_TASKS if name not in missing]


def _check_model(
    run: GlueArguments, args: GlueTrainingArguments, tokenizer: PreTrainedTokenizerBase, names: list[str]
) -> None:
    from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING, AutoConfig

    from sublayers.hub.loading import load
    from sublayers.training.trainers.start import check_length

    config = load(AutoConfig, run.model_name_or_path)
    if type(config) not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
        raise ValueError(
            f"{run.model_name_or_path} is a {config.model_type}, which has no classifier; give another model"
        )
    check_length("max_length", run.max_length, config, tokenizer, tokenizer.num_special_tokens_to_add(pair=True) + 2)
    has = tuple(label for _, label in sorted(config.id2label.items()))
    for name in names:
        if not args.do_train and has != GLUE_TASKS[name].labels:
            raise ValueError(
                f"{run.model_name_or_path} has the labels {', '.join(has)}, but {name} has "
                f"{', '.join(GLUE_TASKS[name].labels)}; fine-tune it with --do_train"
            )

"""`sublayers squad`: fine-tune a model on SQuAD, version 1.1 or 2, and evaluate it as the official scorers do."""

import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from sublayers.training.data import squad as squad_data
from sublayers.training.data.files import used
from sublayers.training.data.squad import SquadDataArguments, answer_windows, load_questions
from sublayers.training.flags import flag, parse_flags
from sublayers.training.metrics.squad import evaluate, squad_metrics, start_and_end
from sublayers.training.trainers.arguments import FineTuningArguments, default

if TYPE_CHECKING:
    from sublayers.training.trainers.resumable_trainer import ResumableTrainer

USAGE = "sublayers squad [SETTINGS.yaml] --model_name_or_path MODEL [--name value ...]"
SQUAD_SCORES = ("exact_match", "exact", "f1", "best_exact", "best_f1", "best_f1_thresh")


@dataclass
class SquadArguments:
    """Flags for the model and the choice of answers."""

    _argument_group_name: ClassVar[str] = "model and answers"

    model_name_or_path: str | None = flag("model to fine-tune or evaluate")
    predictions_file: str | None = flag("score these predictions ({id: answer}) for --validation_file, without a model")
    n_best_size: int = flag("best answers to keep of each question", 20)
    max_answer_length: int = flag("most tokens of an answer", 30)
    null_score_diff_threshold: float = flag(
        "predict no answer if its score exceeds the best answer's by more; with --version_2", 0.0
    )


@dataclass
class SquadTrainingArguments(FineTuningArguments):
    """Arguments with BERT's defaults for SQuAD; train and evaluate by default."""

    output_dir: str = default("output_dir", "runs/squad")
    num_train_epochs: float = default("num_train_epochs", 2.0)
    per_device_train_batch_size: int = default("per_device_train_batch_size", 16)
    logging_steps: float = default("logging_steps", 0.01)
    metric_for_best_model: str | None = default("metric_for_best_model", "f1")

    def __post_init__(self):
        if not (self.do_train or self.do_eval):
            self.do_train = self.do_eval = True
        super().__post_init__()


FLAGS = (SquadArguments, SquadDataArguments, SquadTrainingArguments)


def main(argv: list[str]) -> dict[str, float]:
    """Fine-tune and evaluate a model on SQuAD, and leave model, tokenizer, metrics and predictions in a folder.

    Args:
        argv: flags, after an optional .yaml or .json file with the same names; see `sublayers squad --help`.

    Returns:
        The metrics of the evaluation, `eval_exact_match` and `eval_f1` or in version 2 `eval_exact`, `eval_f1`, their
        parts and best thresholds, in per cent, and those of training, such as `train_loss`. With predictions from a
        file, their metrics without the prefix.

    Raises:
        FileExistsError: the output folder is not empty and the run does not resume.
        FileNotFoundError: there is no such file.
        ValueError: bad flags, data that cannot be read or lack a column, an answer that is not where it should be, or
            windows too long for the model or too short for the questions.
    """
    run, data, args = parse(argv)
    # models and Trainers take seconds to import, for which --help does not wait
    from sublayers.training.trainers.run import run as run_training

    if run.predictions_file:
        return _score_file(run.predictions_file, data)
    return run_training(
        args,
        partial(make_trainer, run, data, args),
        SQUAD_SCORES,
        data,
        {"name": "SQuAD", "id": squad_data.hub_name(data)},
        [run],
        unit="loss",
        command=["squad", *argv],
        started_from=run.model_name_or_path,
    )


def make_trainer(
    run: SquadArguments, data: SquadDataArguments, args: SquadTrainingArguments, checkpoint: str | None
) -> "ResumableTrainer":
    """Read the questions, cut their contexts into windows, and make the Trainer.

    Raises:
        ValueError: data that cannot be read, or windows too long for the model or too short for the questions.
    """
    from transformers import AutoConfig, AutoModelForQuestionAnswering, AutoTokenizer, DataCollatorWithPadding, set_seed

    from sublayers.hub.loading import load
    from sublayers.training.trainers.resumable_trainer import ResumableTrainer
    from sublayers.training.trainers.start import check_length

    source = str(run.model_name_or_path)
    # positions of answers count from the left
    tokenizer = load(AutoTokenizer, source, padding_side="right")
    # batches need a padding token, and decoders often have none
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    check_length("max_seq_length", data.max_seq_length, load(AutoConfig, source), tokenizer)
    train_windows, eval_windows, questions, read = None, None, None, {}
    with args.main_process_first(desc="reading and tokenizing the data"):
        if args.do_eval:
            questions = load_questions("validation", data)
            read["validation"] = used(questions, data.max_eval_samples)
            eval_windows = answer_windows(questions, tokenizer, data, training=False)
        if args.do_train:
            rows = load_questions("train", data)
            read["train"] = used(rows, data.max_train_samples)
            train_windows = answer_windows(rows, tokenizer, data, training=True)
    set_seed(args.seed)
    trainer = ResumableTrainer(
        model=load(AutoModelForQuestionAnswering, source),
        args=args,
        train_dataset=train_windows,
        eval_dataset=eval_windows,
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=partial(evaluate, questions=questions, windows=eval_windows, run=run, data=data, args=args),
        preprocess_logits_for_metrics=start_and_end,
    )
    trainer.about["used"] = read
    return trainer


def parse(argv: list[str]) -> tuple[SquadArguments, SquadDataArguments, SquadTrainingArguments]:
    """Read the command's flags, after an optional recipe or settings file.

    Raises:
        ValueError: unknown flags, numbers that are too small, or no model.
    """
    run, data, args = parse_flags(argv, FLAGS, USAGE, "squad")
    for name, value, least in (
        ("n_best_size", run.n_best_size, 1),
        ("max_answer_length", run.max_answer_length, 1),
        ("doc_stride", data.doc_stride, 0),
    ):
        if value < least:
            raise ValueError(f"--{name}={value} should be at least {least}")
    if not (run.model_name_or_path or run.predictions_file):
        raise ValueError("there is no model; give --model_name_or_path, or --predictions_file to score predictions")
    return run, data, args


def _score_file(path: str, data: SquadDataArguments) -> dict[str, float]:
    from sublayers.training.trainers.publish import summary

    predictions = squad_data.read_json(path)
    if not isinstance(predictions, dict):
        raise ValueError(f"{path} should map ids of questions to answers")
    questions = load_questions("validation", data)
    if missing := sum(name not in predictions for name in questions["id"]):
        print(f"{missing} of {len(questions)} questions have no prediction and count as wrong", file=sys.stderr)
    metrics = squad_metrics(predictions, questions, data.version_2)
    print(summary(metrics, SQUAD_SCORES))
    return metrics

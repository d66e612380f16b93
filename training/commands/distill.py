"""`sublayers distill`: teach a cheaper order of sublayers what a trained encoder or classifier answers."""

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import set_seed

from sublayers.configuration.sublayer_order import expand
from sublayers.tasks.question_answering import longest_input
from sublayers.training.commands.distill_arguments import FLAGS, USAGE, DistillArguments, DistillTrainingArguments
from sublayers.training.commands.pretrain import STANDARD_LIBRARY
from sublayers.training.data.corpus import CorpusArguments, load_corpus
from sublayers.training.distill.answers import AnswerCollator, AnsweredTexts, check_answers, load_answers
from sublayers.training.distill.losses import embedding_loss, logit_loss
from sublayers.training.distill.moves import MovesCallback, moves
from sublayers.training.distill.student import Student, make_student
from sublayers.training.distill.teacher import Teacher, hash_vocabulary, hash_weights, open_teacher
from sublayers.training.distill.texts import encode_texts, hash_rows
from sublayers.training.distill.trainer import DistillTrainer, agreement, cosine
from sublayers.training.flags import expand_settings_file, parse_flags
from sublayers.training.folders import claim
from sublayers.training.trainers.loss_curve import save_loss_curve
from sublayers.training.trainers.publish import describe_data, finish
from sublayers.training.trainers.resume import find_checkpoint

SCORES = ("loss", "cosine", "agreement")
LABELS_OF_NUMBERS = ("regression", "multi_label_classification")
SIZES = ("hidden_size", "intermediate_size", "num_attention_heads")


def main(argv: list[str]) -> dict[str, float]:
    """Train and evaluate a student, and leave it in a folder that opens as its teacher's does.

    Args:
        argv: the teacher's folder or repository, then flags, after an optional .yaml or .json file with the same names;
            see `sublayers distill --help`.

    Returns:
        The metrics of training and of the last evaluation: the loss, and the mean cosine of both embeddings of a text,
        or the share of texts for which both have the same label.

    Raises:
        FileExistsError: the output folder is not empty and the run does not resume.
        OSError: there is no such teacher.
        ValueError: bad flags; a teacher, order or layers that do not go together; a text without sentences; answers
            that are kept of another teacher or text; fewer steps than the moves take.
    """
    source, run, corpus_args, args = parse(argv)
    # where it is missing, that is said before anything is computed
    encoders: Any = None
    if run.objective == "embeddings":
        encoders = import_module("sublayers.training.distill.sentence_encoder")
    with claim(str(args.output_dir), args.process_index):
        checkpoint = find_checkpoint(args)
        teacher = open_teacher(source, run.objective)
        longest = longest_input(teacher.model.config, teacher.tokenizer)
        if not 3 <= run.max_length <= longest:
            raise ValueError(f"max_length={run.max_length} is not between 3 and the teacher's {longest}; give another")
        # a new head and new sublayers may be random
        set_seed(args.seed)
        sizes = {name: size for name in SIZES if (size := getattr(run, name)) is not None}
        student = make_student(teacher, run.sublayer_order, run.layers, sizes, run.max_length)
        trainer = make_trainer(teacher, student, run, answer_texts(teacher, run, corpus_args, args), args)
        metrics: dict[str, float] = {}
        if args.do_train:
            trained = trainer.train(resume_from_checkpoint=checkpoint).metrics
            trainer.save_metrics("train", trained)
            metrics |= trained
        trainer.save_model()
        if args.do_eval:
            evaluated = trainer.evaluate()
            trainer.save_metrics("eval", evaluated)
            metrics |= evaluated
        folder = Path(str(args.output_dir))
        if encoders:
            encoders.save_sentence_encoder(folder, teacher, run.pooling or teacher.pooling, run.max_length)
        if args.do_train:
            save_loss_curve(trainer.state.log_history, folder, "loss")
        data = describe_data(corpus_args, {"name": STANDARD_LIBRARY}, corpus_args.dataset_config_name)
        remarks = [f"A student of {source}, which learned its {run.objective}: {describe_loss(teacher, run)}."]
        if run.moves_every:
            number = len(moves(student.start, run.sublayer_order)) - 1
            remarks.append(
                f"From {student.start} to its own order in {number} moves, one every {run.moves_every} steps."
            )
        about = {"command": ["distill", *argv], "data": data, "started_from": source, "remarks": remarks}
        finish(trainer, metrics, SCORES, **about)
        return metrics


def parse(argv: list[str]) -> tuple[str, DistillArguments, CorpusArguments, DistillTrainingArguments]:
    """Read the teacher's name and the command's flags, after an optional settings file.

    Raises:
        ValueError: no teacher, unknown flags, or such as do not go together.
    """
    source, flags = ("", argv) if not argv or argv[0].startswith("-") else (argv[0], argv[1:])
    run, corpus_args, args = parse_flags(expand_settings_file(flags, "distill"), FLAGS, USAGE)
    if not source:
        raise ValueError(
            "there is no teacher; name its folder first, as in sublayers distill TEACHER --objective logits"
        )
    expand(run.sublayer_order)
    if corpus_args.streaming:
        raise ValueError("the teacher's answers are kept for a text that is read once; leave --streaming out")
    if run.moves_every < 0:
        raise ValueError(f"--moves_every {run.moves_every} is no number of steps; give 0 or more")
    if run.pooling and run.objective != "embeddings":
        raise ValueError(f"a student that learns {run.objective} does not pool; leave --pooling {run.pooling} out")
    if run.temperature <= 0:
        raise ValueError(f"--temperature {run.temperature} is not positive; give a larger one")
    if args.world_size > 1 or args.n_gpu > 1:
        raise ValueError("a student is compared within one batch on one device; start one process with one GPU")
    return source, run, corpus_args, args


def answer_texts(
    teacher: Teacher, run: DistillArguments, corpus_args: CorpusArguments, args: DistillTrainingArguments
) -> dict[str, AnsweredTexts]:
    """Read the texts of the splits that are needed, with the teacher's answers, kept ones or new ones.

    Raises:
        ValueError: a text that cannot be read or is empty, or answers that are kept of something else.
    """
    corpus = load_corpus(corpus_args)
    if args.do_train and "train" not in corpus:
        raise ValueError("there is nothing to train on; give --train_file, or --do_eval to evaluate only")
    wanted = {"train": (args.do_train, run.max_train_samples), "validation": (args.do_eval, run.max_eval_samples)}
    rows: dict[str, Dataset] = {
        split: encode_texts(corpus[split].take(number), teacher.tokenizer, run.max_length, teacher.pooling is not None)
        for split, (is_needed, number) in wanted.items()
        if is_needed
    }
    known = {
        "objective": run.objective,
        "pooling": teacher.pooling,
        "tokenizer": hash_vocabulary(teacher.tokenizer),
        "teacher": hash_weights(teacher.model),
        "max_length": run.max_length,
    }
    about = {split: known | {"text": hash_rows(texts)} for split, texts in rows.items()}
    folder = Path(run.answers or Path(str(args.output_dir), "answers"))
    # whatever is wrong with any of them is said before one is computed
    for split in rows:
        check_answers(folder, split, about[split])
    return {
        split: AnsweredTexts(
            texts,
            load_answers(folder, split, about[split], teacher, texts, args.per_device_eval_batch_size, args.device),
        )
        for split, texts in rows.items()
    }


def make_trainer(
    teacher: Teacher,
    student: Student,
    run: DistillArguments,
    texts: dict[str, AnsweredTexts],
    args: DistillTrainingArguments,
) -> DistillTrainer:
    """Make the Trainer of a student, in which its order moves."""
    loss: Any = embedding_loss
    compute_metrics: Any = cosine
    if teacher.pooling is None:
        exclusive = has_classes(teacher)
        loss = partial(logit_loss, temperature=run.temperature, exclusive=exclusive)
        compute_metrics = agreement if exclusive else None
    orders = moves(student.start if run.moves_every else run.sublayer_order, run.sublayer_order)
    model: Any = student.model
    return DistillTrainer(
        model=model,
        args=args,
        processing_class=teacher.tokenizer,
        data_collator=AnswerCollator(teacher.tokenizer),
        train_dataset=texts.get("train"),
        eval_dataset=texts.get("validation"),
        compute_metrics=compute_metrics,
        callbacks=[MovesCallback(model.base_model.layers, orders, run.moves_every)],
        pooling=run.pooling or teacher.pooling,
        loss=loss,
    )


def has_classes(teacher: Teacher) -> bool:
    """Say whether a classifier's labels exclude each other."""
    config: Any = teacher.model.config
    return config.num_labels > 1 and config.problem_type not in LABELS_OF_NUMBERS


def describe_loss(teacher: Teacher, run: DistillArguments) -> str:
    """Write what the student was trained to reduce."""
    if teacher.pooling:
        return "one minus the cosine of both, and the squared difference of the cosines within a batch"
    if has_classes(teacher):
        return f"the divergence of both probabilities at temperature {run.temperature:g}"
    return "the squared difference of both"

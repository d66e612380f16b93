"""`sublayers distill`: teach a cheaper order of sublayers what a trained encoder or classifier answers."""

from pathlib import Path
from typing import Any

from transformers import set_seed

from sublayers.configuration.sublayer_order import expand
from sublayers.hub.loading import folder_of
from sublayers.hub.self_contained import copy_modules
from sublayers.tasks.question_answering import longest_input
from sublayers.training.commands.distill_arguments import FLAGS, USAGE, DistillArguments, DistillTrainingArguments
from sublayers.training.commands.pretrain import STANDARD_LIBRARY
from sublayers.training.data.corpus import CorpusArguments, load_corpus
from sublayers.training.distill.answers import AnswerCollator, AnsweredTexts
from sublayers.training.distill.moves import MovesCallback, moves
from sublayers.training.distill.objectives import OBJECTIVES, Objective
from sublayers.training.distill.student import make_student
from sublayers.training.distill.teacher import CLASSIFIER, hash_vocabulary, hash_weights, open_teacher
from sublayers.training.distill.texts import encode_texts, hash_rows
from sublayers.training.distill.trainer import DistillTrainer
from sublayers.training.flags import expand_settings_file, parse_flags
from sublayers.training.folders import claim
from sublayers.training.trainers.loss_curve import save_loss_curve
from sublayers.training.trainers.publish import describe_data, finish
from sublayers.training.trainers.resume import find_checkpoint

SCORES = ("loss", "cosine", "agreement")
SIZES = ("hidden_size", "intermediate_size", "num_attention_heads")


def main(argv: list[str]) -> dict[str, float]:
    """Train and evaluate a student, and leave it in a folder that opens as its teacher's does.

    Args:
        argv: the teacher's folder or repository, then flags, after an optional .yaml or .json file with the same names;
            see `sublayers distill --help`.

    Returns:
        The metrics of training and of the last evaluation: the loss, and the mean cosine of both embeddings of a text
        or states of a token, or the share of texts or masked words for which both have the same label or word.

    Raises:
        FileExistsError: the output folder is not empty and the run does not resume.
        OSError: there is no such teacher, or no room for its answers.
        ValueError: bad flags; a teacher, order or layers that do not go together; a text without sentences; answers
            that are kept of another teacher or text; fewer steps than the moves take.
    """
    source, run, corpus_args, args = parse(argv)
    with claim(str(args.output_dir), args.process_index):
        checkpoint = find_checkpoint(args)
        kind = OBJECTIVES[run.objective]
        teacher = open_teacher(source, kind.head)
        longest = longest_input(teacher.model.config, teacher.tokenizer)
        if not 3 <= run.max_length <= longest:
            raise ValueError(f"max_length={run.max_length} is not between 3 and the teacher's {longest}; give another")
        # a new head and new sublayers may be random
        set_seed(args.seed)
        sizes = {name: size for name in SIZES if (size := getattr(run, name)) is not None}
        student = make_student(teacher, run.sublayer_order, run.layers, sizes, run.max_length)
        objective = kind(teacher, student.model, run.pooling, run.temperature, run.relation_heads)
        orders = moves(student.start if run.moves_every else run.sublayer_order, run.sublayer_order)
        texts = read_texts(objective, run, corpus_args, args)
        trainer = make_trainer(objective, orders, run, texts, args)
        keep_answers(texts, objective, run, args)
        metrics: dict[str, float] = {}
        if args.do_train:
            trained = trainer.train(resume_from_checkpoint=checkpoint).metrics
            trainer.save_metrics("train", trained)
            metrics |= trained
        if args.do_eval:
            evaluated = trainer.evaluate()
            trainer.save_metrics("eval", evaluated)
            metrics |= evaluated
        objective.release()
        trainer.save_model()
        folder = Path(str(args.output_dir))
        if objective.pooling:
            # takes seconds
            from sublayers.training.distill.sentence_encoder import save_sentence_encoder

            save_sentence_encoder(folder, teacher, objective.pooling, run.max_length)
        elif teacher.head is CLASSIFIER:
            copy_modules(folder_of(source), folder)
        if args.do_train:
            save_loss_curve(trainer.state.log_history, folder, "loss")
        data = describe_data(corpus_args, {"name": STANDARD_LIBRARY}, corpus_args.dataset_config_name)
        remarks = [f"A student of {source}, which learned its {run.objective}: {objective.describe()}."]
        if run.moves_every:
            number = len(orders) - 1
            remarks.append(
                f"From {student.start} to its own order in {number} moves, one every {run.moves_every} steps."
            )
        about = {"command": ["distill", *argv], "data": data, "started_from": source, "remarks": remarks}
        finish(trainer, metrics, SCORES, has_model=True, **about)
        return metrics


def parse(argv: list[str]) -> tuple[str, DistillArguments, CorpusArguments, DistillTrainingArguments]:
    """Read the teacher's name and the command's flags, after an optional settings file.

    Raises:
        ValueError: unknown flags, or such as do not go together.
    """
    source, *flags = argv
    run, corpus_args, args = parse_flags(expand_settings_file(flags, "distill"), FLAGS, USAGE)
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
    if args.dataloader_num_workers:
        raise ValueError("the teacher answers in the process that trains; leave --dataloader_num_workers out")
    return source, run, corpus_args, args


def read_texts(
    objective: Objective, run: DistillArguments, corpus_args: CorpusArguments, args: DistillTrainingArguments
) -> dict[str, AnsweredTexts]:
    """Read the texts of the splits that are needed, which wait for the teacher's answers.

    Raises:
        ValueError: a text that cannot be read or is empty.
    """
    corpus = load_corpus(corpus_args)
    if args.do_train and "train" not in corpus:
        raise ValueError("there is nothing to train on; give --train_file, or --do_eval to evaluate only")
    wanted = {"train": (args.do_train, run.max_train_samples), "validation": (args.do_eval, run.max_eval_samples)}
    tokenizer, texts = objective.teacher.tokenizer, {}
    for split, (is_needed, number) in wanted.items():
        if is_needed:
            by_sentence = objective.by_sentence and not run.whole_rows
            rows = encode_texts(corpus[split].take(number), tokenizer, run.max_length, by_sentence)
            rows = objective.prepare(rows)
            texts[split] = AnsweredTexts(rows, objective)
    return texts


def make_trainer(
    objective: Objective,
    orders: list[str],
    run: DistillArguments,
    texts: dict[str, AnsweredTexts],
    args: DistillTrainingArguments,
) -> DistillTrainer:
    """Make the Trainer of a student, which runs in one of the orders after the other.

    Raises:
        ValueError: fewer steps than the moves take.
    """
    model: Any = objective.student
    callback = MovesCallback(model.base_model.layers, orders, run.moves_every)
    trainer = DistillTrainer(
        model=model,
        args=args,
        processing_class=objective.teacher.tokenizer,
        data_collator=AnswerCollator(objective.teacher.tokenizer),
        train_dataset=texts.get("train"),
        eval_dataset=texts.get("validation"),
        callbacks=[callback],
        objective=objective,
    )
    if args.do_train:
        callback.check(trainer.set_initial_training_values(args, trainer.get_train_dataloader())[-1])
    return trainer


def keep_answers(
    texts: dict[str, AnsweredTexts], objective: Objective, run: DistillArguments, args: DistillTrainingArguments
) -> None:
    """Say where the teacher's answers are kept. Raises what `AnsweredTexts.keep` raises."""
    teacher = objective.teacher
    known = {
        "objective": run.objective,
        "pooling": teacher.pooling,
        "tokenizer": hash_vocabulary(teacher.tokenizer),
        "teacher": hash_weights(teacher.model),
        "max_length": run.max_length,
    }
    folder = Path(run.answers or Path(str(args.output_dir), "answers"))
    for split, each in texts.items():
        each.keep(folder / split, known | {"text": hash_rows(each.rows)}, args.device)

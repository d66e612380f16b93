"""What `sublayers distill` makes of its flags: teacher, student, texts with answers, and the Trainer of them."""

from pathlib import Path
from typing import Any

from datasets import Dataset, IterableDataset
from transformers import set_seed

from sublayers.training.data.corpus import CorpusArguments, Text, load_corpus
from sublayers.training.data.files import Used
from sublayers.training.distill.answers import AnswerCollator, AnsweredTexts
from sublayers.training.distill.moves import MovesCallback, moves
from sublayers.training.distill.objectives import OBJECTIVES, Objective
from sublayers.training.distill.sharding import shard
from sublayers.training.distill.student import keep_sublayers, make_student, open_student, set_dropout
from sublayers.training.distill.teacher import Teacher, hash_vocabulary, hash_weights, open_teacher
from sublayers.training.distill.texts import count_answers, hash_rows
from sublayers.training.distill.trainer import DistillTrainer
from sublayers.training.trainers.publish import shown
from sublayers.training.trainers.start import check_length


def make_trainer(
    run: Any,
    corpus_args: CorpusArguments,
    args: Any,
    checkpoint: str | None,
) -> DistillTrainer:
    """Open the teacher, make a student of it, read the texts, and make the Trainer.

    Raises:
        OSError: there is no such teacher, or no room for its answers.
        ValueError: a teacher, order or layers that do not go together, or fewer steps than the moves take.
    """
    teacher = find_teacher(run)
    # a new head and new sublayers may be random
    set_seed(args.seed)
    sizes = {name: getattr(run, name) for name in ("hidden_size", "intermediate_size", "num_attention_heads")}
    sizes = {name: size for name, size in sizes.items() if size is not None}
    if run.student:
        student = open_student(run.student, teacher)
    elif run.sublayers:
        student = keep_sublayers(teacher, run.sublayers, run.sublayer_order)
    else:
        student = make_student(teacher, str(run.sublayer_order), run.layers, sizes, run.max_length)
    if run.dropout is not None:
        set_dropout(student.model, run.dropout)
    # a test that cannot be read is refused before the training
    files = [file for file in (run.sts_file, run.squad_file) if file]
    tests = load_tests(run.sts_file, run.squad_file) if files else None
    order = student.model.config.sublayer_order
    if run.tail_query:
        student.model.config.tail_query = run.tail_query
    objective = OBJECTIVES[run.objective](teacher, student.model, run.pooling, run.temperature, run.relation_heads)
    orders = moves(student.start, order) if run.moves_every else [order]
    with args.main_process_first(desc="reading and tokenizing the texts"):
        texts, used = read_texts(objective, run, corpus_args, args)
    body: Any = student.model.base_model
    callback = MovesCallback(body.layers, orders, run.moves_every)
    trainer = DistillTrainer(
        model=student.model,
        args=args,
        processing_class=teacher.tokenizer,
        data_collator=AnswerCollator(teacher.tokenizer),
        train_dataset=texts.get("train"),
        eval_dataset=texts.get("validation"),
        callbacks=[callback],
        objective=objective,
        max_length=run.max_length,
        tests=tests,
    )
    if args.do_train:
        callback.check(trainer.set_initial_training_values(args, trainer.get_train_dataloader())[-1])
    keep_answers(texts, objective, run, args)
    remarks = [f"A student of {shown(run.teacher)}, which learned its {run.objective}: {objective.reduces}."]
    if run.sublayers:
        remarks.append(f"It began with the teacher's sublayers {' '.join(run.sublayers)}.")
    if run.student:
        remarks.append(f"It began as {shown(run.student)}.")
    if run.moves_every:
        number = len(orders) - 1
        remarks.append(f"From {student.start} to its own order in {number} moves, one every {run.moves_every} steps.")
    if tests:
        remarks.append(
            "In %: Spearman's correlation (sts), questions whose passage is among the first ten (retrieval)."
        )
        used["test"] = Used(sum(len(rows) for rows in tests if rows is not None), True)
        names = ", ".join(Path(file).name for file in files)
        trainer.about["tests"] = [{"role": "tested on", "name": names, "own": True}]
    trainer.about |= {"remarks": remarks, "used": used}
    return trainer


def load_tests(sts_file: str | None, squad_file: str | None) -> Any:
    """Read what embeddings are tested on. Raises what `load_texts` raises."""
    # this import takes seconds, for which other objectives do not wait
    from sublayers.training.metrics.sentence_encoders import load_texts

    return load_texts(sts_file, squad_file)


def make_answers(run: Any, corpus_args: CorpusArguments, args: Any) -> None:
    """Ask a teacher for all texts, and keep its answers. Raises what `make_trainer` raises."""
    teacher = find_teacher(run)
    objective = OBJECTIVES[run.objective](teacher, teacher.model, run.pooling, run.temperature, run.relation_heads)
    with args.main_process_first(desc="reading and tokenizing the texts"):
        texts, _ = read_texts(objective, run, corpus_args, args)
    keep_answers(texts, objective, run, args)
    for each in texts.values():
        each.complete_all(args.eval_batch_size)
    if args.process_index == 0:
        print(f"answers to {', '.join(f'{len(each)} {split} texts' for split, each in texts.items())} in {run.answers}")


def find_teacher(run: Any) -> Teacher:
    """Open a teacher for an objective. Raises what `open_teacher` and `check_length` raise."""
    teacher = open_teacher(run.teacher, OBJECTIVES[run.objective].head)
    check_length("max_length", run.max_length, teacher.model.config, teacher.tokenizer, least=3)
    return teacher


def read_texts(
    objective: Objective, run: Any, corpus_args: CorpusArguments, args: Any
) -> tuple[dict[str, Any], dict[str, Used]]:
    """Read the texts of the splits that are needed, which wait for the teacher's answers; a stream has none.

    Returns:
        The texts, and what is read of each split.

    Raises:
        ValueError: a text that cannot be read or is empty.
    """
    corpus = load_corpus(corpus_args)
    if args.do_train and "train" not in corpus:
        raise ValueError("there is nothing to train on; give --train_file, or --do_eval to evaluate only")
    wanted = {"train": (args.do_train, run.max_train_samples), "validation": (args.do_eval, run.max_eval_samples)}
    texts, used = {}, {}
    for split, (is_needed, number) in wanted.items():
        if is_needed:
            text = corpus[split].take(number)
            used[split] = text.used
            if corpus_args.streaming and split == "validation":
                # this is read more than once
                text = Text(Dataset.from_list([*text.rows]), text.documents)
            rows = objective.encode(text, run.max_length, run.whole_rows)
            is_stream = isinstance(rows, IterableDataset)
            texts[split] = count_answers(rows, objective.count) if is_stream else AnsweredTexts(rows, objective)
    return texts, used


def keep_answers(texts: dict[str, Any], objective: Objective, run: Any, args: Any) -> None:
    """Say where the teacher's answers are kept, and how it runs. Raises what `AnsweredTexts.keep` raises."""
    teacher = objective.teacher
    known = {
        "objective": run.objective,
        "pooling": teacher.pooling,
        "tokenizer": hash_vocabulary(teacher.tokenizer),
        "teacher": hash_weights(teacher.model),
        "max_length": run.max_length,
    }
    folder = Path(run.answers or Path(str(args.output_dir), "answers"))
    with args.main_process_first(desc="making a folder for the answers"):
        for split, each in texts.items():
            if isinstance(each, AnsweredTexts):
                each.keep(folder / split, known | {"text": hash_rows(each.rows)}, args.device)
    if args.shards:
        # a teacher whose student does not fit on a device does not, either
        shard(teacher.model)

"""BERTs that are pre-trained and fine-tuned, as far as that was not finished before."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sublayers.hub.model_card import num_parameters
from sublayers.training.data.corpus import CorpusArguments, load_corpus
from sublayers.training.data.tokenizers import sample, train_tokenizer
from sublayers.training.flags import as_flags
from sublayers.training.folders import whole_folder
from sublayers.training.lab.runs import flags_of, run_once
from sublayers.training.lab.studies.equal_berts import read_model

if TYPE_CHECKING:
    from sublayers.training.lab.studies.bert import StudyArguments

# heading, scale and digits of the figures of pre-training
PRETRAINING = {
    "eval_loss": ("pre-training loss (nats)", 1, 2),
    "eval_masked_accuracy": ("masked words right (%)", 100, 1),
    "eval_next_sentence_accuracy": ("next sentence right (%)", 100, 1),
}


def tokenizer(folder: Path, vocab_size: int, corpus: CorpusArguments) -> Path:
    """Train the tokenizer of a study, unless it is there; return its folder."""
    if not folder.exists():
        texts = sample(load_corpus(corpus)["train"], "wordpiece")
        # another process may make the same
        with whole_folder(folder) as new:
            train_tokenizer(texts, "wordpiece", vocab_size).save_pretrained(new)
    return folder


def train(model: str, seed: int, args: "StudyArguments", corpus: CorpusArguments) -> dict[str, Any]:
    """Pre-train a model, and fine-tune it on every task.

    Returns:
        Its `order`, `parameters`, widths and `cost`, the metrics of `pretraining`, and of each of the `tasks` the
        metric, the score and all scores.
    """
    folder, studied = Path(args.output_dir, f"{model}-{seed}"), read_model(model)
    sizes = args.hidden_size, args.num_attention_heads
    width, inner = studied.sizes(*sizes)

    def run(command: str, place: Path, flags: dict[str, Any], more: str, results: str = "all_results.json") -> Any:
        words = [command, *as_flags({**flags, "seed": seed}), *more.split()]
        return run_once(place, f"{place.name}: {model}, {studied.order}, seed {seed}", words, results)

    widths = {"hidden_size": width, "intermediate_size": inner}
    own = {"objective": "mlm+nsp", "model_type": studied.model_type, "sublayer_order": studied.order, **widths}
    own["num_attention_heads"] = args.num_attention_heads
    own["tokenizer_name_or_path"] = tokenizer(Path(args.output_dir, "tokenizer"), args.vocab_size, corpus)
    start = {"model_name_or_path": folder / "pretrained"}
    pretraining = run("pretrain", folder / "pretrained", own | flags_of(corpus), args.pretraining_flags)
    tasks = {}
    for task in args.tasks:
        flags = {**start, "task_name": task, "data_dir": args.glue_dir}
        found = run("glue", folder / task, flags, args.glue_flags, "results.json")[task]
        tasks[task] = {"metric": found["metric"], "score": found["best"]["median"], "all": found["best"]["runs"]}
    if args.squad_train_file:
        flags = {**start, "train_file": args.squad_train_file, "validation_file": args.squad_validation_file}
        found = run("squad", folder / "squad", flags, args.squad_flags)
        tasks["squad"] = {"metric": "f1", "score": found["eval_f1"] / 100, "all": found}
    about = {"order": studied.order, "parameters": num_parameters(folder / "pretrained"), **widths}
    return {**about, "cost": studied.cost(*sizes), "pretraining": pretraining, "tasks": tasks}

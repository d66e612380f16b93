"""What trained encoder-decoders write in each of their orders, and how it is scored."""

import json
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, pvariance
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedTokenizerBase

from sublayers.training.data.pairs import SIDES, Seq2SeqDataArguments, check_tokenized, load_pairs
from sublayers.training.lab.studies.curves import Curves, read_losses
from sublayers.training.metrics.seq2seq import task_metrics
from sublayers.training.trials import TASK

if TYPE_CHECKING:
    from sublayers.training.lab.studies.orders import StudyOrdersArguments
    from sublayers.training.lab.studies.writer import Writer

# the metric of each task that tables and pictures show
TASK_METRICS = {"translation": "bleu", "summarization": "rougeL", "code": "sentence_bleu"}
# how many tokens are the frequent ones of Table 18
FREQUENT = 20

# texts by side
Pairs = dict[str, list[str]]


@dataclass(frozen=True)
class Written:
    """What models write of some pairs."""

    args: "StudyOrdersArguments"
    data: Seq2SeqDataArguments

    @property
    def metric(self) -> str:
        """The metric of the task."""
        return TASK_METRICS[self.args.task]

    def check(self) -> None:
        """Load all models and pairs.

        Raises:
            ValueError: there are no data, or models have other tokens than others that they write with.
        """
        if self.args.task != "code" and not (
            self.data.dataset_name or self.data.validation_file or self.data.test_file
        ):
            fault = f"there are no data for --task {self.args.task}"
            raise ValueError(f"{fault}; give --validation_file or --dataset_name")
        check_tokenized(self.data, self.args.task)
        writers = self.writers()
        vocabularies = [[each.get_vocab() for each in writer.tokenizers] for writer in writers.values()]
        for name, vocabulary in zip(writers, vocabularies, strict=True):
            if self.args.ensemble and vocabulary != vocabularies[0]:
                fault = f"{name} has another vocabulary than {self.args.model_name_or_path[0]}"
                raise ValueError(f"{fault}; an ensemble needs models with the same")
        self.read(*writers.values())

    def load(self, name: str) -> "Writer":
        """Load a model. Raises what `load_writer` raises."""
        # models take seconds to import, for which --help does not wait
        from sublayers.training.lab.studies.writer import load_writer

        return load_writer(name, args=self.args, max_source_length=self.data.max_source_length)

    def writers(self) -> dict[str, "Writer"]:
        """Load all models."""
        return {name: self.load(name) for name in self.args.model_name_or_path}

    def read(self, *writers: "Writer") -> dict[str, Pairs]:
        """Read the splits that writers need. Raises a ValueError where there is none."""
        loaded = load_pairs(self.data)
        needed = {self.args.split, *("validation" for writer in writers if writer.is_undecided)}
        if missing := sorted(needed - loaded.keys()):
            raise ValueError(f"there are no {missing[0]} data; give --{missing[0]}_file")
        return {split: {side: list(loaded[split][side]) for side in SIDES} for split in needed}

    def score(self, predictions: list[str], references: list[str]) -> dict[str, Any]:
        """Score predictions with the metrics of the task."""
        target = (self.args.language, self.data.target, self.data.tokenized)
        return task_metrics(self.args.task, predictions, references, *target)

    def curves(self, name: str) -> Curves:
        """Read a model's losses in training and, with --checkpoints, score these: pairs of a step and a value."""
        from sublayers.training.trainers.resume import complete_checkpoints

        curves = read_losses(Path(name))
        if self.args.checkpoints:
            points = curves[self.metric] = []
            for path in complete_checkpoints(name):
                writer = self.load(str(path))
                pairs = self.read(writer)[self.args.split]
                texts = writer.write(pairs["source"], str(path))
                points.append([int(path.name.split("-")[-1]), self.score(texts, pairs["target"])[self.metric]])
        return curves

    def everything(self, done: list[dict[str, Any]], file: Path) -> dict[str, Any]:
        """Write what trials and ensembles found into a file, and return it.

        Returns:
            Of each model in `models` what `study` finds but the texts, and in `curves` its curves; in `ensembles` their
            metrics; in `preferences` those of all models with one order, by their names, and of each model with
            several, by its decoder orders.
        """
        trials = {each[TASK]["model"]: each for each in done}
        chosen = {name: trials[name] for name in self.args.model_name_or_path if name in trials}
        found: dict[str, Any] = {"split": self.args.split, "metric": self.metric}
        for kind in ("models", "curves"):
            found[kind] = {name: each[kind] for name, each in chosen.items()}
        found["ensembles"] = self.ensembles() if self.args.ensemble else []
        found["preferences"] = self.preferences(chosen, file.parent)
        file.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        return found

    def preferences(self, trials: dict[str, dict[str, Any]], folder: Path) -> dict[str, Any]:
        """Compare what writers wrote of each sentence, and leave it in `sentences.jsonl`.

        Args:
            trials: of each model, what its trial found.
            folder: for the file.
        """
        # scores take seconds to import, for which --help does not wait
        from sublayers.training.metrics.preferences import preferences

        if self.args.task != "translation":
            return {}
        # of each writer its texts and their score
        groups: dict[str, dict[str, tuple[list[str], float]]] = {}
        single: dict[str, tuple[list[str], float]] = {}
        for name, each in trials.items():
            written = [
                (texts, order["metrics"][self.metric])
                for texts, order in zip(each["texts"], each["models"]["orders"], strict=False)
            ]
            if len(written) > 1:
                groups[name] = {f"{n}": own for n, own in enumerate(written, 1)}
            else:
                single[name] = written[0]
        groups["models of one order"] = single
        compared = {name: writers for name, writers in groups.items() if len(writers) > 1}
        if not compared:
            return {}
        references = list(load_pairs(self.data)[self.args.split]["target"])
        found, sentences = {}, []
        for name, writers in compared.items():
            texts = {writer: own for writer, (own, _) in writers.items()}
            group = preferences(texts, references, lambda *both: self.score(*both)[self.metric])
            sentences += [{"writers": name, **sentence} for sentence in group.pop("sentences")]
            found[name] = group | {"corpus_variance": pvariance([score for _, score in writers.values()])}
        lines = "".join(json.dumps(sentence, ensure_ascii=False) + "\n" for sentence in sentences)
        (folder / "sentences.jsonl").write_text(lines, encoding="utf-8")
        return found

    def ensembles(self) -> list[dict[str, Any]]:
        """Let the first model, the first two, ... write together: the metrics of each."""
        from sublayers.training.lab.studies.ensemble import Seq2SeqEnsemble

        writers = [*self.writers().values()]
        pairs, found = self.read(*writers)[self.args.split], []
        for number in range(1, len(writers) + 1):
            ensemble = Seq2SeqEnsemble([writer.model for writer in writers[:number]])
            texts = replace(writers[0], model=ensemble).write(pairs["source"], f"ensemble of {number}")
            found.append(self.score(texts, pairs["target"]))
        return found

    def study(self, name: str) -> dict[str, Any]:
        """Let a model write a split in each of its orders.

        Returns:
            `orders`, a list of a dict each: `encoder` and `decoder`, whether the order was `trained`, the `metrics` of
            the whole split (Table 21) and, if orders are predicted, the `share` of the sources that are predicted to
            suit it.
            `predicted`: the metrics of the texts in predicted orders, and `subsets`: of each order that is predicted at
            all its number, `order`, how all orders do on these pairs, see `subset`, and what `tokens` they have.
            `best`, if orders are trained, but not predicted: the number of the `order` that scores best on the
            `validation` data, that score, and its metrics on the split.
            `texts`: what is written in each trained order.
        """
        writer = self.load(name)
        splits = self.read(writer)

        def write_all(split: str) -> list[list[str]]:
            sources, number = splits[split]["source"], len(writer.paths)
            return [
                writer.write(sources, f"{name}, {split}, order {n} of {number}", path)
                for n, path in enumerate(writer.paths, 1)
            ]

        pairs, texts = splits[self.args.split], write_all(self.args.split)
        encoders, decoders = writer.model.config.stack_orders
        orders: list[dict[str, Any]] = [
            {
                "encoder": str(encoders[m]),
                "decoder": str(decoders[n]),
                "trained": number < writer.trained,
                "metrics": self.score(texts[number], pairs["target"]),
            }
            for number, (m, n) in enumerate(writer.paths)
        ]
        found: dict[str, Any] = {"orders": orders, "texts": texts[: writer.trained]}
        if writer.predicts:
            chosen = writer.choose(pairs["source"], f"{name}, predicting orders")
            own = [texts[number][row] for row, number in enumerate(chosen)]
            found |= {"predicted": self.score(own, pairs["target"]), "subsets": []}
            for number, order in enumerate(orders):
                rows = [row for row, other in enumerate(chosen) if other == number]
                order["share"] = len(rows) / len(chosen)
                if rows:
                    subset = self.subset(rows, pairs["target"], texts) | tokens(rows, pairs, writer.tokenizers)
                    found["subsets"].append({"order": number + 1, **subset})
        if writer.is_undecided:
            scores = [order["metrics"][self.metric] for order in orders]
            if self.args.split != "validation":
                target = splits["validation"]["target"]
                scores = [self.score(written, target)[self.metric] for written in write_all("validation")]
            best = scores.index(max(scores))
            found["best"] = {"order": best + 1, "validation": scores[best], "metrics": orders[best]["metrics"]}
        return found

    def subset(self, rows: list[int], targets: list[str], texts: list[list[str]]) -> dict[str, Any]:
        """Score some rows of what was written in every order (Figure 2): their number, the `scores`, and their mean."""
        references = [targets[row] for row in rows]
        scores = [self.score([written[row] for row in rows], references)[self.metric] for written in texts]
        return {"sentences": len(rows), "scores": scores, "mean_score": mean(scores)}


def tokens(rows: list[int], pairs: Pairs, tokenizers: tuple[PreTrainedTokenizerBase, ...]) -> dict[str, Any]:
    """Count the tokens of some rows (Table 18).

    Returns:
        For `source` and `target` the `tokens`, special ones not counted, `distinct_tokens`, and how frequent the 20
        most frequent ones are among them in all, `top_frequency`, from 0 to 1.
    """
    found = {}
    for side, tokenizer in zip(SIDES, tokenizers, strict=True):
        ids = tokenizer([pairs[side][row] for row in rows], add_special_tokens=False, verbose=False).input_ids
        counts = Counter(token for text in ids for token in text)
        found[side] = {
            "tokens": counts.total(),
            "distinct_tokens": len(counts),
            "top_frequency": sum(count for _, count in counts.most_common(FREQUENT)) / counts.total(),
        }
    return found

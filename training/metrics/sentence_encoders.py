"""How good a sentence encoder's embeddings are, as the field measures it."""

from typing import Any, NamedTuple

from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import (
    EmbeddingSimilarityEvaluator,
    InformationRetrievalEvaluator,
)

from sublayers.training.data.files import BUILDERS, check_file, read_rows
from sublayers.training.data.squad import SquadDataArguments, load_questions

HITS = 10
PAIR_COLUMNS = ("sentence1", "sentence2", "label")


class Texts(NamedTuple):
    """What an encoder is tested on: pairs of sentences with a number each, and questions with their passages."""

    pairs: Dataset | None
    questions: Dataset | None

    def by_score(self) -> dict[str, list[str]]:
        """List the texts that each score needs embeddings of, without repetition; of retrieval, the passages."""
        texts: dict[str, list[str]] = {}
        if self.pairs is not None:
            texts["sts"] = [*dict.fromkeys([*self.pairs["sentence1"], *self.pairs["sentence2"]])]
        if self.questions is not None:
            texts["retrieval"] = [*dict.fromkeys(self.questions["context"])]
        return texts


def load_texts(sts_file: str | None, squad_file: str | None) -> Texts:
    """Read the texts of the tests. Raises ValueError or FileNotFoundError where a file cannot be read."""
    pairs: Any = None
    questions: Any = None
    if not (sts_file or squad_file):
        raise ValueError("there is nothing to test encoders on; give --sts_file or --squad_file")
    if sts_file:
        check_file(sts_file, BUILDERS)
        pairs = read_rows([sts_file])
        if missing := [name for name in PAIR_COLUMNS if name not in pairs.column_names]:
            raise ValueError(f"{sts_file} has no column {missing[0]!r}, only {', '.join(pairs.column_names)}")
    if squad_file:
        questions = load_questions("validation", SquadDataArguments(validation_file=squad_file)).shuffle(seed=0)
    return Texts(pairs, questions)


def score(encoder: SentenceTransformer, texts: Texts, max_questions: int, batch_size: int = 32) -> dict[str, float]:
    """Score an encoder, from 0 to 100.

    Args:
        encoder: of sentences, questions and passages.
        texts: pairs have the columns `sentence1`, `sentence2` and `label`, questions `question` and `context`.
        max_questions: how many questions are asked, the first ones; passages are those of all.
        batch_size: texts that are encoded at once.

    Returns:
        `sts`, Spearman's correlation of cosines and labels, and `retrieval`, the share of the questions whose passage
        is among the ten that are nearest.
    """
    scores = {}
    if texts.pairs is not None:
        first, second, labels = (list(texts.pairs[name]) for name in ("sentence1", "sentence2", "label"))
        similarity = EmbeddingSimilarityEvaluator(
            first, second, labels, batch_size, similarity_fn_names=["cosine"], write_csv=False
        )
        scores["sts"] = 100 * similarity(encoder)["spearman_cosine"]
    if texts.questions is not None:
        asked = texts.questions.take(min(max_questions, len(texts.questions)))
        # questions may be asked twice about different passages
        keys = [f"{number}" for number in range(len(asked))]
        retrieval = InformationRetrievalEvaluator(
            dict(zip(keys, asked["question"], strict=True)),
            # a passage is its own key
            {text: text for text in texts.by_score()["retrieval"]},
            {key: {text} for key, text in zip(keys, asked["context"], strict=True)},
            accuracy_at_k=[HITS],
            batch_size=batch_size,
            write_csv=False,
        )
        scores["retrieval"] = 100 * retrieval(encoder)[f"cosine_accuracy@{HITS}"]
    return scores

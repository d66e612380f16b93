"""Which of several models or orders translates which sentence best (Zhu et al., 2021, section 1, Tables 1 and 2)."""

from collections.abc import Callable
from statistics import mean, pvariance
from typing import Any

from sacrebleu.metrics import BLEU, TER
from tqdm.auto import tqdm


def preferences(
    texts: dict[str, list[str]], references: list[str], score: Callable[[list[str], list[str]], float]
) -> dict[str, Any]:
    """Count how often each of several writers is best, and how far their scores lie apart.

    BLEU of a sentence is sacreBLEU's with its smoothing; the paper does not say how it smooths. Where several are best,
    each of them has an equal share of the sentence.

    Args:
        texts: of each writer, one text for each reference; two writers at least.
        references: the right texts.
        score: of a corpus, texts and references.

    Returns:
        `best_bleu` and `best_ter`, of each writer the share of the sentences, from 0 to 1; `sentence_variance`, the
        mean over the sentences of the variance of their BLEU over the writers; `best_of_all`, the score if somebody
        chose the text with the highest BLEU of each sentence; `sentences`, of each its `reference` and of each writer
        `text`, `bleu` (0 to 100) and `ter` (in percent, small is good).
    """
    bleu, ter = BLEU(effective_order=True), TER()
    rows = []
    for i, reference in enumerate(tqdm(references, "scoring sentences", delay=2)):
        written = {name: own[i] for name, own in texts.items()}
        scored = {
            name: {
                "text": text,
                "bleu": bleu.sentence_score(text, [reference]).score,
                "ter": ter.sentence_score(text, [reference]).score,
            }
            for name, text in written.items()
        }
        rows.append({"reference": reference, "written": scored})
    spread = [[row["written"][name]["bleu"] for name in texts] for row in rows]
    chosen = [max(row["written"].values(), key=lambda each: each["bleu"])["text"] for row in rows]
    return {
        "best_bleu": _shares(rows, "bleu", max),
        "best_ter": _shares(rows, "ter", min),
        "sentence_variance": mean(map(pvariance, spread)),
        "best_of_all": score(chosen, references),
        "sentences": rows,
    }


def _shares(rows: list[Any], metric: str, choose: Callable[[Any], float]) -> dict[str, float]:
    shares = dict.fromkeys(rows[0]["written"], 0.0)
    for row in rows:
        best = choose(each[metric] for each in row["written"].values())
        winners = [name for name, each in row["written"].items() if each[metric] == best]
        for name in winners:
            shares[name] += 1 / len(winners) / len(rows)
    return shares

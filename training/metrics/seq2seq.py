"""What generated text is scored by: BLEU of translations, ROUGE of summaries, BLEU and syntax of code."""

import ast
import re
import warnings

import tree_sitter_java
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU
from sacremoses import MosesTokenizer
from tqdm.auto import tqdm
from tree_sitter import Language, Parser, Query, QueryCursor

# target languages without spaces between words; sacreBLEU's own choice for Japanese needs a dictionary
BLEU_TOKENIZERS = {"zh": "zh", "ja": "char"}
ROUGE_TYPES = ["rouge1", "rouge2", "rougeL"]
CODE_TOKEN = re.compile(r"\w+|[^\w\s]")

JAVA = Language(tree_sitter_java.language())
JAVA_NAMES = Query(JAVA, "[(identifier) (type_identifier)] @name")
# the Java Language Specification, section 3.9, and the three literals
JAVA_RESERVED = frozenset(
    b"abstract assert boolean break byte case catch char class const continue default do double else enum extends "
    b"false final finally float for goto if implements import instanceof int interface long native new null package "
    b"private protected public return short static strictfp super switch synchronized this throw throws transient true "
    b"try void volatile while".split()
)


def task_metrics(
    task: str,
    predictions: list[str],
    references: list[str],
    language: str = "python",
    target_language: str | None = None,
    tokenized: bool = False,
) -> dict[str, float | str]:
    """Score generated texts as the papers on their task do; numbers are from 0 to 100, greater is better.

    Args:
        task: `translation`, `summarization` or `code`.
        predictions: texts, at least one; a text may be empty.
        references: the right text for each.
        language: what `code` is written in, `python` or `java`.
        target_language: code such as `de` or `zh_CN`, of a `translation`; English by default.
        tokenized: texts of a `translation` are tokens with spaces between.

    Raises:
        ValueError: an unknown task or language, no predictions, or not one reference for each.
    """
    if not predictions or len(predictions) != len(references):
        raise ValueError(
            f"there are {len(predictions)} predictions and {len(references)} references; give one reference for each "
            "prediction, and at least one"
        )
    if task == "translation":
        return translation_metrics(predictions, references, target_language, tokenized)
    if task == "summarization":
        return summarization_metrics(predictions, references)
    if task == "code":
        return code_metrics(predictions, references, language)
    raise ValueError(f"unknown task {task!r}; choose from translation, summarization, code")


def translation_metrics(
    predictions: list[str], references: list[str], target_language: str | None = None, tokenized: bool = False
) -> dict[str, float | str]:
    """Corpus BLEU (Papineni et al., 2002) in two forms.

    `bleu` is sacreBLEU (Post, 2018) of the texts, and `bleu_signature` says with which settings. `tokenized_bleu` is
    for comparison with papers that use `multi-bleu.perl`: its BLEU, without smoothing, of the tokens that the Moses
    tokenizer makes of both texts, or of their own if they are tokenized, which Moses would divide again. Moses leaves a
    full stop at its word where a small letter follows, so that texts of several sentences have other tokens if, unlike
    in the papers, they are in lower case before. Chinese and Japanese have no `tokenized_bleu` unless they are
    tokenized, because Moses does not find their words.
    """
    code = re.split("[-_]", (target_language or "en").lower())[0]
    # it would warn of tokens
    bleu = BLEU(tokenize=BLEU_TOKENIZERS.get(code, "13a"), force=tokenized)
    metrics: dict[str, float | str] = {"bleu": bleu.corpus_score(predictions, [references]).score}
    metrics["bleu_signature"] = str(bleu.get_signature())
    if tokenized or code not in BLEU_TOKENIZERS:
        if not tokenized:
            moses = MosesTokenizer(code)
            # escapes would stand for the same tokens
            predictions, references = (
                [moses.tokenize(text, escape=False, return_str=True) for text in tqdm(texts, "tokenizing", delay=2)]
                for texts in (predictions, references)
            )
        multi_bleu = BLEU(tokenize="none", smooth_method="none", force=True)
        metrics["tokenized_bleu"] = multi_bleu.corpus_score(predictions, [references]).score
    return metrics


def summarization_metrics(predictions: list[str], references: list[str]) -> dict[str, float | str]:
    """ROUGE (Lin, 2004) of one and two words and of the longest common subsequence, each the mean of the texts' F1.

    As `ROUGE-1.5.5.pl -m` does, words are runs of a to z and 0 to 9 in lower case, without their English endings
    (Porter's stemmer): texts in other scripts score 0.
    """
    scorer = RougeScorer(ROUGE_TYPES, use_stemmer=True)
    pairs = tqdm(list(zip(references, predictions, strict=True)), "scoring", delay=2)
    scores = [scorer.score(*pair) for pair in pairs]
    return {name: 100 * sum(score[name].fmeasure for score in scores) / len(scores) for name in ROUGE_TYPES}


def code_metrics(predictions: list[str], references: list[str], language: str = "python") -> dict[str, float | str]:
    """BLEU and the percentage of valid code (PoV) as IOT (Zhu et al., 2021, section 4.3) scores generated code.

    Tokens are names, numbers and single signs, so that layout does not count. `bleu` is that of the corpus, and
    `sentence_bleu` the mean over the texts. The paper does not say how it smooths. Here the k-th n-gram order without a
    match counts as 1/2^k of a match (sacreBLEU's default, method 3 of Chen and Cherry, 2014), or else most texts would
    score 0; and orders longer than the prediction do not count, or else a right one of three tokens would.
    `valid_code` is the percentage of predictions with a syntax tree, see `is_python` and `is_java`.

    Raises:
        ValueError: an unknown language.
    """
    parsers = {"python": is_python, "java": is_java}
    if language not in parsers:
        raise ValueError(f"cannot parse the language {language!r}; choose from {', '.join(parsers)}")
    predicted, right = ([" ".join(CODE_TOKEN.findall(text)) for text in texts] for texts in (predictions, references))
    bleu = BLEU(tokenize="none", effective_order=True, force=True)
    pairs = tqdm(list(zip(predicted, right, strict=True)), "scoring", delay=2)
    return {
        "bleu": BLEU(tokenize="none", force=True).corpus_score(predicted, [right]).score,
        "sentence_bleu": sum(bleu.sentence_score(text, [reference]).score for text, reference in pairs) / len(pairs),
        "valid_code": 100 * sum(map(parsers[language], predictions)) / len(predictions),
    }


def is_python(code: str) -> bool:
    """Whether a text is Python of the version that runs: at least one statement, or the indented body of a function."""
    # a body must not end the function that is put around it
    return _statements(code) > 0 or _statements(f"def function():\n{code}") == 1


def _statements(code: str) -> int:
    try:
        with warnings.catch_warnings():
            # Python warns of escapes such as "\d"
            warnings.simplefilter("ignore")
            return len(ast.parse(code).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # the parser also refuses null bytes and code that is nested too deep
        return 0


def is_java(code: str) -> bool:
    """Whether a text is Java: at least one statement or declaration, of a file or of what a class holds.

    The grammar is a little wider than the language's; for example, it does not mind a modifier that is repeated.
    """
    parser = Parser(JAVA)
    for text, inside in ((code, False), (f"class Class {{\n{code}\n}}", True)):
        root = parser.parse(text.encode(errors="replace")).root_node
        nodes = root.named_children
        if all(node.type.endswith("comment") for node in nodes):
            return False
        # the code must not end the class that is put around it
        if root.has_error or (inside and len(nodes) > 1):
            continue
        # the grammar takes reserved words for names where it has no other use for them, as in `return return x;`
        names = QueryCursor(JAVA_NAMES).captures(root).get("name", [])
        if not any(name.text in JAVA_RESERVED for name in names):
            return True
    return False

import ast
import math
import random
import warnings
from collections import Counter
from functools import cache

import pytest

from sublayers.training.metrics.seq2seq import is_java, is_python, task_metrics


def naive_bleu(pairs: list[tuple[list[str], list[str]]], smooth: bool = False, effective: bool = False) -> float:
    """BLEU of pairs of tokens by the words of its paper; `smooth` is method 3 of Chen and Cherry."""
    length, right_length = sum(len(tokens) for tokens, _ in pairs), sum(len(right) for _, right in pairs)
    precisions, missing = [], 0
    for n in range(1, 5):
        matched = total = 0
        for tokens, right in pairs:
            left = [tuple(right[i : i + n]) for i in range(len(right) - n + 1)]
            for i in range(len(tokens) - n + 1):
                total += 1
                if tuple(tokens[i : i + n]) in left:
                    left.remove(tuple(tokens[i : i + n]))
                    matched += 1
        if n == 1 and not matched:
            return 0.0
        if not total and effective:
            break
        if not matched and total and smooth:
            missing += 1
            matched = 0.5**missing
        precisions.append(matched / total if total else 0.0)
    if 0 in precisions:
        return 0.0
    penalty = math.exp(min(0, 1 - right_length / length))
    return 100 * penalty * math.prod(precisions) ** (1 / len(precisions))


def draw_pairs(pieces: list, seed: int, count: int = 40) -> list[tuple[list, list]]:
    """Pairs of lists of pieces that have much in common, some of them short, and one an empty prediction."""
    draw = random.Random(seed)
    pairs = []
    for _ in range(count):
        right = draw.choices(pieces, k=draw.randint(1, 14))
        pairs.append(([p if draw.random() < 0.8 else draw.choice(pieces) for p in right if draw.random() < 0.9], right))
    return [*pairs, ([], right)]


# how a text is written, and its tokens by the rules of mteval-v13a and of Moses
ENGLISH = [
    ("dogs", "dogs", "dogs"), ("Dogs,", "Dogs ,", "Dogs ,"), ("3.5", "3.5", "3.5"), ("1,000", "1,000", "1,000"),
    ("(cat)", "( cat )", "( cat )"), ("it's", "it's", "it 's"), ("Mr.", "Mr .", "Mr."), ("well-known", "well-known",
    "well-known"), ("run:", "run :", "run :"), ("“so”", "“so”", "“ so ”"), ("a/b", "a / b", "a / b"), ("!", "!", "!"),
]  # fmt: skip
ITALIAN = [("l'acqua", "l'acqua", "l' acqua"), ("dell'uomo", "dell'uomo", "dell' uomo"), ("è", "è", "è"),
           ("bella,", "bella ,", "bella ,"), ("l", "l", "l")]  # fmt: skip


@pytest.mark.parametrize(("language", "pieces"), [(None, ENGLISH), ("en", ENGLISH), ("it_IT", ITALIAN)])
def test_both_bleus_of_a_translation_are_those_of_the_definition(language, pieces):
    # with few and with many matches, and where the predictions are the longer ones
    for seed in range(3):
        pairs = draw_pairs(pieces, seed)
        pairs = [pair[::-1] for pair in pairs] if seed == 2 else pairs
        texts, plain, moses = (
            [[" ".join(piece[kind] for piece in side) for side in pair] for pair in pairs] for kind in range(3)
        )
        actual = task_metrics("translation", *map(list, zip(*texts, strict=True)), target_language=language)
        expected = [naive_bleu([(a.split(), b.split()) for a, b in tokens]) for tokens in (plain, moses)]
        assert [actual["bleu"], actual["tokenized_bleu"]] == pytest.approx(expected)
        assert min(expected) > 20
        assert expected[0] != pytest.approx(expected[1])
        assert "tok:13a" in actual["bleu_signature"]


def test_only_sacrebleu_smooths_what_has_no_match_of_four_words():
    texts = ["a b c x d", "a b c y d"]
    actual = task_metrics("translation", [texts[0]], [texts[1]])
    assert actual["bleu"] == pytest.approx(naive_bleu([(texts[0].split(), texts[1].split())], smooth=True))
    assert "smooth:exp" in actual["bleu_signature"]
    assert actual["bleu"] > 0
    assert actual["tokenized_bleu"] == 0


@pytest.mark.parametrize(("language", "tokenizer"), [("zh", "zh"), ("ZH-cn", "zh"), ("ja", "char")])
def test_chinese_and_japanese_are_scored_by_their_signs(language, tokenizer):
    prediction, right = "今天天气很好我们去。", "今天天气很好他们去吗。"
    actual = task_metrics("translation", [prediction], [right], target_language=language)
    assert actual["bleu"] == pytest.approx(naive_bleu([(list(prediction), list(right))]))
    assert f"tok:{tokenizer}|" in actual["bleu_signature"]
    assert "tokenized_bleu" not in actual


@pytest.mark.parametrize("language", ["en", "zh"])
def test_texts_that_are_tokens_are_scored_as_they_are(language, caplog):
    texts = [("i don 't know , he said .", "we don 't know , he says .")] * 120
    actual = task_metrics("translation", *map(list, zip(*texts, strict=True)), target_language=language, tokenized=True)
    assert actual["tokenized_bleu"] == pytest.approx(naive_bleu([(a.split(), b.split()) for a, b in texts]))
    assert not caplog.records


# how a text is written, and its words in lower case without endings; short ones keep theirs
SUMMARIES = [("Dogs", "dog"), ("dog", "dog"), ("running,", "run"), ("was", "was"), ("gas", "gas"), ("U.S.", "u s"),
             ("plays", "play"), ("PLAYED", "play"), ("1984!", "1984"), ("—", ""), ("a_b", "a b")]  # fmt: skip


def naive_rouge(words: list[str], right: list[str]) -> list[float]:
    @cache
    def common(i, j):
        if i == len(words) or j == len(right):
            return 0
        return common(i + 1, j + 1) + 1 if words[i] == right[j] else max(common(i + 1, j), common(i, j + 1))

    def f1(matched, total, right_total):
        return 200 * matched / (total + right_total) if matched else 0.0

    scores = []
    for n in (1, 2):
        mine, gold = (Counter(zip(*(side[i:] for i in range(n)), strict=False)) for side in (words, right))
        matched = sum(min(count, gold[ngram]) for ngram, count in mine.items())
        scores.append(f1(matched, sum(mine.values()), sum(gold.values())))
    return [*scores, f1(common(0, 0), len(words), len(right))]


def test_rouge_is_the_mean_f1_of_the_definition():
    pairs = draw_pairs(SUMMARIES, 0)
    texts = [[" ".join(piece[0] for piece in side) for side in pair] for pair in pairs]
    actual = task_metrics("summarization", *map(list, zip(*texts, strict=True)))
    scores = [naive_rouge(*([w for piece in side for w in piece[1].split()] for side in pair)) for pair in pairs]
    expected = [sum(column) / len(scores) for column in zip(*scores, strict=True)]
    assert actual == pytest.approx(dict(zip(("rouge1", "rouge2", "rougeL"), expected, strict=True)))


CODE = [("x=f(y)", "x = f ( y )"), ("\n    if a_b:\n", "if a_b :"), ("x == 'é'", "x = = ' é '"), ("  ", "")]
CODE += [("1.5", "1 . 5")]


@pytest.mark.parametrize("seed", range(3))
def test_bleus_of_code_are_of_tokens_and_the_mean_over_texts_is_smoothed(seed):
    # and one that is right, and too short for four tokens
    pairs = [*draw_pairs(CODE, seed, 20), ([CODE[4]], [CODE[4]])]
    texts = [[" ".join(piece[0] for piece in side) for side in pair] for pair in pairs]
    actual = task_metrics("code", *map(list, zip(*texts, strict=True)))
    tokens = [tuple([t for piece in side for t in piece[1].split()] for side in pair) for pair in pairs]
    assert actual["bleu"] == pytest.approx(naive_bleu(tokens, smooth=True))
    means = [sum(naive_bleu([pair], True, effective) for pair in tokens) / len(tokens) for effective in (True, False)]
    assert actual["sentence_bleu"] == pytest.approx(means[0])
    assert means[0] != pytest.approx(means[1])


@pytest.mark.parametrize("task", ["translation", "summarization", "code"])
def test_what_is_equal_scores_100_and_what_is_empty_0(task):
    text = "def f(x):\n    return x + 1"
    equal, empty, nothing = (
        {name: value for name, value in task_metrics(task, *texts).items() if not isinstance(value, str)}
        for texts in (([text, text], [text, text]), (["", " \n"], [text, text]), ([""], [""]))
    )
    assert equal == pytest.approx(dict.fromkeys(equal, 100))
    assert empty == nothing == dict.fromkeys(equal, 0)


def test_valid_code_is_a_percentage_in_the_language_asked_for():
    predictions = ["x = 1", "int x = 1;", "int f( {", "y = 2;"]
    assert task_metrics("code", predictions, predictions)["valid_code"] == 50
    assert task_metrics("code", predictions, predictions, "java")["valid_code"] == 50
    assert task_metrics("code", predictions[1:], predictions[1:])["valid_code"] == pytest.approx(100 / 3)


VALID_PYTHON = [
    "def f(x):\n    return x", "x", "     y = 1\n     return y", "\tyield x\n\t# done", "\n\n  pass\n",
    '    s = """\nat the margin\n"""\n    return s', "return x", "'''text'''", "@d\nasync def f():\n  await x",
    "    if a:\n        b\n    else:\n        c", "(" * 50 + ")" * 50,
]  # fmt: skip


@pytest.mark.parametrize("code", VALID_PYTHON)
def test_python_and_bodies_of_its_functions_are_valid(code):
    assert is_python(code)


INVALID_PYTHON = {
    "empty": "", "blank": " \n\t", "comment": "# nothing", "indented comment": "    # nothing", "prose": "hello world",
    "open": "f(", "null": "x = 1\0", "null body": "  x\0", "surrogate": "x = '\udc80'", "print": "print 'x'",
    "ends the body": "    x = 1\ny = 2", "unindents between": "    x = 1\n  y = 2", "no indent": "def f():\nreturn 1",
    "indents": "x = 1\n     return x", "brackets": "(" * 100_000, "signs": "-" * 100_000 + "1",
    "lists": "[" * 5000 + "]" * 5000, "blocks": "".join(" " * i + "if x:\n" for i in range(200)) + " " * 200 + "x",
    "attributes": "x" + ".y" * 100_000, "digits": "1" * 10_000, "else": "    x\nelse:\n    y",
}  # fmt: skip


@pytest.mark.parametrize("code", INVALID_PYTHON.values(), ids=INVALID_PYTHON)
def test_other_texts_are_no_python(code):
    assert not is_python(code)


@pytest.mark.parametrize("error", [MemoryError, RecursionError])
def test_code_that_is_too_much_for_the_parser_is_not_valid(monkeypatch, error):
    def parse(code):
        raise error

    monkeypatch.setattr(ast, "parse", parse)
    assert not is_python("x = 1")


@pytest.mark.parametrize("action", ["always", "error"])
def test_python_that_parses_with_a_warning_is_valid_without_one(action):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter(action)
        assert is_python("x = '\\d'")
        assert is_python("    return 1or x")
    assert not caught


VALID_JAVA = [
    "package p; import java.util.*; public class A<T extends Comparable<? super T>> { Map<String, List<T>> m; }",
    "public static < T > List < List < T > > f ( T [ ] x ) { return map ( x , a -> a + 1 ) . get ( ) ; }",
    "public Foo(int x) { this(x, Outer.this.y); super.f(); int.class.getName(); Foo.class.f(Foo::new); }",
    'String s() { var t = """\n  "q"\n  """; return switch (t) { case "a" -> t; default -> { yield "b"; } }; }',
    "static { x = 1; }", "{ x = 1; }",
    "private int x = 1;", "int x = 1;", "x = f(1);", "return x;", "@Override int f();", "Foo() { } // why",
    "record P(int x) {}", "sealed interface S permits A, B {}", "enum E { A, B; }", "/* why */ int f() { return 'a'; }",
    "void f() { if (o instanceof String s) { try (R r = g()) { throw e; } catch (A | B e) { } finally { } } }",
    "void f() { x = " + "(" * 5000 + "1" + ")" * 5000 + "; }", "@interface A { int value() default 1; }",
    "void record(int var, Object yield) { synchronized (this) { assert var > 0 : yield; } }",
]  # fmt: skip


@pytest.mark.parametrize("code", VALID_JAVA, ids=lambda code: code[:20])
def test_java_and_what_a_class_or_method_holds_are_valid(code):
    assert is_java(code)


INVALID_JAVA = [
    "", " \n", ";", "// nothing", "/* nothing */ // at all", "hello world", "x + 1", "int f( { return 1; }", "/* a",
    "int f() { return 1 }", "int f() { return 1; ", "} class B {", "}", "{", "void f() { if x { } }", "int x = 08;",
    "void f() { \0 }", "int f() { return return - 1; }", "int f() { int class = 1; }", "void for() { }", "else { }",
    "List<while> x;", "int f() { x = \udc80; }", "{" * 5000, "def f(x):\n    return x", "} int x; {",
    "Foo(int x) { } }",
]  # fmt: skip


@pytest.mark.parametrize("code", INVALID_JAVA, ids=lambda code: repr(code[:20]))
def test_other_texts_are_no_java(code):
    assert not is_java(code)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("translation", [], []), "0 predictions and 0 references"),
        (("code", ["a", "b"], ["a"]), "2 predictions and 1 references"),
        (("summarization", ["a"], ["a", "b"]), "1 predictions and 2 references"),
        (("poetry", ["a"], ["a"]), "'poetry'; choose from translation, summarization, code"),
        (("code", ["a"], ["a"], "cobol"), "'cobol'; choose from python, java"),
    ],
)
def test_bad_input_is_named(arguments, words):
    with pytest.raises(ValueError, match=words):
        task_metrics(*arguments)

import copy
import math
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from common import randomize
from transformers import T5Config, XLNetConfig, pipeline

import sublayers.pipelines  # noqa: F401
from sublayers import (
    PARBertConfig,
    PARBertForMaskedLM,
    PARBertForQuestionAnswering,
    PARBertForSequenceClassification,
    PARBertForTokenClassification,
)
from sublayers.tasks.question_answering import QuestionAnsweringPipeline
from sublayers.tasks.windows import longest_input
from sublayers.training.data.tokenizers import train_tokenizer

CONTEXT = "Ann wrote the café's letter in Paris. Bob read it in Rome, and an unbelievably long winter came. "
QUESTION = "Who wrote it?"


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([CONTEXT, QUESTION], "wordpiece", 60)


def make_model(model_class, tokenizer, **overrides):
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "max_position_embeddings": 64}
    config = PARBertConfig(sublayer_order="ssff", vocab_size=len(tokenizer), **sizes | overrides)
    return randomize(model_class(config))


@pytest.fixture
def load(tokenizer, tmp_path):
    def load(task, model_class, **overrides):
        model = make_model(model_class, tokenizer, **overrides)
        model.save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)
        return pipeline(task, model=str(tmp_path)), model

    return load


@pytest.fixture(scope="module")
def qa(tokenizer):
    return QuestionAnsweringPipeline(
        model=make_model(PARBertForQuestionAnswering, tokenizer), tokenizer=tokenizer, device="cpu"
    )


def naive_spans(model, tokenizer, question, context, length, stride, longest):
    """Probability of every span in every window, and the least that any window gives to no answer."""
    asked = tokenizer(question, add_special_tokens=False).input_ids
    encoding = tokenizer(context, add_special_tokens=False, return_offsets_mapping=True)
    ids, offsets = encoding.input_ids, encoding.offset_mapping
    room = length - len(asked) - 3
    spans, no_answer = {}, 1.0
    for begin in range(0, len(ids), room - stride):
        window = ids[begin : begin + room]
        row = [tokenizer.cls_token_id, *asked, tokenizer.sep_token_id, *window, tokenizer.sep_token_id]
        types = [0] * (len(asked) + 2) + [1] * (len(window) + 1)
        out = model(torch.tensor([row]), token_type_ids=torch.tensor([types]))
        places = [0, *range(len(asked) + 2, len(row) - 1)]
        start, end = (
            [math.exp(x) for x in logits[0, places].tolist()] for logits in (out.start_logits, out.end_logits)
        )
        no_answer = min(no_answer, start[0] * end[0] / sum(start) / sum(end))
        for i in range(len(window)):
            for j in range(i, min(i + longest, len(window))):
                span = offsets[begin + i][0], offsets[begin + j][1]
                probability = start[i + 1] * end[j + 1] / sum(start) / sum(end)
                spans[span] = max(spans.get(span, 0), probability)
        if begin + room >= len(ids):
            break
    return sorted(((score, *span) for span, score in spans.items()), reverse=True), no_answer


@pytest.mark.parametrize("repeats", [1, 5])
def test_finds_the_most_probable_spans_of_all_windows(load, tokenizer, repeats):
    qa, model = load("question-answering", PARBertForQuestionAnswering)
    context = CONTEXT * repeats
    expected, no_answer = naive_spans(model, tokenizer, QUESTION, context, 64, 20, 7)
    options = {"doc_stride": 20, "max_answer_len": 7, "align_to_words": False}
    answers = qa(question=QUESTION, context=context, top_k=30, **options)
    assert [(a["start"], a["end"]) for a in answers] == [span[1:] for span in expected[:30]]
    assert [a["score"] for a in answers] == pytest.approx([score for score, *_ in expected[:30]], rel=1e-4)
    for answer in answers:
        assert answer["answer"] == context[answer["start"] : answer["end"]] != ""
    assert qa(question=QUESTION, context=context, **options) == answers[0]
    everything = qa(question=QUESTION, context=context, top_k=9999, handle_impossible_answer=True, **options)
    assert len(everything) == len(expected) + 1
    (impossible,) = [answer for answer in everything if not answer["answer"]]
    assert impossible == {"score": pytest.approx(no_answer, rel=1e-4), "start": 0, "end": 0, "answer": ""}


def test_takes_questions_in_every_form_of_version_4(qa):
    contexts = [CONTEXT * 4, "Rome came. " * 3, CONTEXT]
    questions = [QUESTION, "Where did Bob read it?", "Who came?"]
    items = [{"question": q, "context": c} for q, c in zip(questions, contexts, strict=True)]
    expected = [qa(item) for item in items]
    assert len({answer["start"] for answer in expected}) > 1
    assert qa(question=questions[0], context=contexts[0]) == expected[0]
    assert qa(questions[0], contexts[0]) == expected[0]
    assert qa(items) == expected
    assert list(qa(item for item in items)) == expected
    assert qa(question=questions, context=contexts) == expected
    assert qa(items[:1]) == expected[0]
    assert qa(question=questions[:2], context=CONTEXT) == [qa(question=q, context=CONTEXT) for q in questions[:2]]
    for answer, again in zip(expected, qa(items, batch_size=4), strict=True):
        assert again == answer | {"score": pytest.approx(answer["score"], rel=1e-4)}


def test_batches_may_be_padded_on_the_left(tokenizer):
    model = make_model(PARBertForQuestionAnswering, tokenizer)
    items = [{"question": QUESTION, "context": context} for context in (CONTEXT * 4, "Rome came.")]
    expected = QuestionAnsweringPipeline(model=model, tokenizer=tokenizer)(items)
    left = copy.deepcopy(tokenizer)
    left.padding_side = "left"
    for answer, again in zip(
        expected, QuestionAnsweringPipeline(model=model, tokenizer=left, batch_size=8)(items), strict=True
    ):
        assert again == answer | {"score": pytest.approx(answer["score"], rel=1e-4)}


def test_parameters_of_the_pipeline_hold_until_a_call_gives_others(qa, tokenizer):
    short = QuestionAnsweringPipeline(
        model=qa.model, tokenizer=tokenizer, max_answer_len=1, align_to_words=False, top_k=2
    )
    item = {"question": QUESTION, "context": CONTEXT}
    for answer in short(item):
        assert len(tokenizer.tokenize(answer["answer"])) == 1
    assert short(item, max_answer_len=9, top_k=1) == qa(item, max_answer_len=9, align_to_words=False)


def test_answers_are_whole_words(qa):
    item = {"question": QUESTION, "context": CONTEXT}
    pieces = qa(item, align_to_words=False, top_k=40)
    words = qa(item, top_k=40)

    def cuts_a_word(answer):
        around = item["context"][answer["start"] - 1 : answer["start"] + 1], item["context"][answer["end"] - 1 :][:2]
        return any(len(two) == 2 and two.isalpha() for two in around)

    assert any(map(cuts_a_word, pieces))
    assert not any(map(cuts_a_word, words))


def test_a_long_question_is_cut(qa, tokenizer):
    cut = tokenizer.decode(tokenizer(QUESTION, add_special_tokens=False).input_ids[:3]).replace(" ##", "")
    expected = qa(question=cut, context=CONTEXT)
    assert qa(question=QUESTION, context=CONTEXT, max_question_len=3) == expected
    assert qa(question=QUESTION, context=CONTEXT)["score"] != expected["score"]


def test_reads_as_much_at_once_as_model_and_tokenizer_say(qa, tokenizer):
    assert longest_input(qa.model.config, tokenizer) == 64
    short = copy.deepcopy(tokenizer)
    short.model_max_length = 32
    assert longest_input(qa.model.config, short) == longest_input(XLNetConfig(), short) == 32
    assert longest_input(T5Config(), short) == 32


def test_a_context_without_tokens_has_no_answer(qa):
    nothing = {"score": 0.0, "start": 0, "end": 0, "answer": ""}
    assert qa(question=QUESTION, context="\u200b") == nothing


def test_a_tokenizer_may_lack_cls_and_make_tokens_of_spaces():
    tokenizer = train_tokenizer([CONTEXT], "bpe", 300)
    context = CONTEXT.replace(" ", "   ")
    offsets = tokenizer(context, return_offsets_mapping=True).offset_mapping
    assert any(start == end for start, end in offsets)
    qa = QuestionAnsweringPipeline(model=make_model(PARBertForQuestionAnswering, tokenizer), tokenizer=tokenizer)
    answers = qa(question="Who?", context=context, top_k=9999, align_to_words=False)
    assert len(answers) > 100
    assert all(answer["answer"] for answer in answers)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"question": " ", "context": "a"}, "the question is ' '; give a question and a context"),
        ({"question": "a", "context": ""}, "the context is ''; give a question and a context"),
        ({"question": "a"}, "the context is None; give"),
        ({"inputs": "Who?"}, "the question is None; give"),
        ({"question": ["a", "b"], "context": ["a"]}, "there are 2 questions for 1 contexts"),
        ({"question": "a", "context": "a", "top_k": 0}, "top_k=0 should be at least 1"),
        ({"question": "a", "context": "a", "max_answer_len": 0}, "max_answer_len=0 should be at least 1"),
        (
            {"question": "Bob " * 20, "context": CONTEXT, "doc_stride": 21},
            "windows of 64 tokens have room for 21 of the context beside the question 'Bob .*, no more than the doc_s",
        ),
        ({"question": "Bob " * 70, "context": CONTEXT, "max_question_len": 70}, "have room for 0 of the context"),
    ],
)
def test_says_in_one_sentence_what_is_wrong(qa, call, message):
    with pytest.raises(ValueError, match=message):
        qa(**call)


def test_fills_masks(load, tokenizer):
    fill_mask, model = load("fill-mask", PARBertForMaskedLM)
    text = "Ann wrote the [MASK] in Paris."
    encoding = tokenizer(text, return_tensors="pt")
    position = encoding.input_ids[0].tolist().index(tokenizer.mask_token_id)
    expected = model(**encoding).logits[0, position].softmax(-1)
    answers = fill_mask(text, top_k=3)
    assert [a["token"] for a in answers] == expected.topk(3).indices.tolist()
    assert [a["score"] for a in answers] == pytest.approx(expected.topk(3).values.tolist(), rel=1e-4)


def test_classifies_texts(load, tokenizer):
    names = {0: "dull", 1: "fine", 2: "great"}
    classify, model = load("text-classification", PARBertForSequenceClassification, id2label=names)
    texts = [CONTEXT[:30], "Bob came."]
    for batch_size in (1, 2):
        for text, answers in zip(texts, classify(texts, top_k=None, batch_size=batch_size), strict=True):
            expected = model(**tokenizer(text, return_tensors="pt")).logits[0].softmax(-1)
            actual = {answer["label"]: answer["score"] for answer in answers}
            assert actual == pytest.approx(dict(zip(names.values(), expected.tolist(), strict=True)), rel=1e-4)


def test_labels_words(load, tokenizer):
    names = {0: "O", 1: "PLACE", 2: "PERSON"}
    label, model = load("token-classification", PARBertForTokenClassification, id2label=names)
    encoding = tokenizer(CONTEXT, return_tensors="pt", return_offsets_mapping=True)
    offsets = encoding.pop("offset_mapping")[0].tolist()
    scores = model(**encoding).logits[0].softmax(-1)
    # the first and last token are special
    rows = list(zip(offsets, scores.tolist(), strict=True))[1:-1]
    expected = [(names[row.index(max(row))], *span, pytest.approx(max(row), rel=1e-4)) for span, row in rows]
    actual = [
        (a["entity"], a["start"], a["end"], a["score"])
        for a in label(CONTEXT, ignore_labels=[], aggregation_strategy="none")
    ]
    assert len({name for name, *_ in expected}) > 1
    assert actual == expected


def test_threads_get_their_own_windows(qa, monkeypatch):
    set_up = qa.tokenizer.set_truncation_and_padding

    def set_up_and_wait(**settings):
        set_up(**settings)
        # now another thread could set up its own
        time.sleep(0.005)

    monkeypatch.setattr(qa.tokenizer, "set_truncation_and_padding", set_up_and_wait)
    asked = [{"question": QUESTION, "context": CONTEXT * n, "max_seq_len": 20 + n, "doc_stride": n} for n in (1, 2, 3)]
    expected = [qa(**each) for each in asked]
    with ThreadPoolExecutor(3) as pool:
        assert [*pool.map(lambda each: qa(**each), asked * 3)] == expected * 3

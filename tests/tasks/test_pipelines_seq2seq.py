import copy

import pytest
import torch
from common import randomize
from datasets import Dataset
from tokenizers import decoders
from transformers import (
    AutoModelForSeq2SeqLM,
    BartConfig,
    BartForConditionalGeneration,
    BertTokenizer,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    MarianConfig,
    MarianMTModel,
    MBartTokenizer,
    NllbTokenizer,
    T5Config,
    T5ForConditionalGeneration,
    pipeline,
    pipelines,
)
from transformers.pipelines.base import get_default_model_and_revision
from transformers.pipelines.pt_utils import KeyDataset

import sublayers.pipelines  # noqa: F401
from sublayers import IOTSeq2SeqConfig, MacaronSeq2SeqConfig, MacaronSeq2SeqForConditionalGeneration
from sublayers.tasks.text2text_generation import SummarizationPipeline, Text2TextGenerationPipeline, TranslationPipeline

pytestmark = pytest.mark.slow
TEXTS = ["Bob came.", "Ann wrote the letter in Paris, and Bob read it in Rome.", "An unbelievably long winter came."]
POSITIONS = 48
SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "max_position_embeddings": POSITIONS}


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer("bob ##ob came ann wrote wr letter in paris rome winter , .")


def make_tokenizer(words):
    # given and not trained, so that it is the same in each run
    letters = "abcdefghijklmnopqrstuvwxyz"
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *("##" + x for x in letters), *words.split()]
    return BertTokenizer({word: i for i, word in enumerate(vocab)}, bos_token="[CLS]", eos_token="[SEP]")


def special(tokenizer):
    ids = {f"{role}_token_id": getattr(tokenizer, f"{role}_token_id") for role in ("pad", "bos", "eos")}
    return ids | {"vocab_size": len(tokenizer), "decoder_start_token_id": tokenizer.bos_token_id}


def diverse(model):
    """Give a model random weights, and make it say each token once, so that it says more than one and ends."""
    model.generation_config.no_repeat_ngram_size = 1
    return randomize(model)


def make_bart(tokenizer, model_class=BartForConditionalGeneration, config_class=BartConfig, **overrides):
    side = {"layers": 1, "ffn_dim": 24, "attention_heads": 4}
    sizes = {f"{prefix}_{name}": size for prefix in ("encoder", "decoder") for name, size in side.items()}
    settings = sizes | special(tokenizer) | {"d_model": 16, "max_position_embeddings": POSITIONS}
    return diverse(model_class(config_class(**settings | {"forced_eos_token_id": None} | overrides)))


def make_marian(tokenizer):
    return make_bart(tokenizer, MarianMTModel, MarianConfig)


def make_t5(tokenizer, **overrides):
    sizes = {"d_model": 16, "d_ff": 24, "num_heads": 4, "d_kv": 4, "num_layers": 1}
    return diverse(T5ForConditionalGeneration(T5Config(**sizes | special(tokenizer) | overrides)))


def make_macaron(tokenizer, **overrides):
    orders = {"encoder_sublayer_order": "fsf", "decoder_sublayer_order": "fscf"}
    config = MacaronSeq2SeqConfig(**SIZES | orders | special(tokenizer) | overrides)
    return diverse(MacaronSeq2SeqForConditionalGeneration(config))


def make_iot(tokenizer):
    return diverse(AutoModelForSeq2SeqLM.from_config(IOTSeq2SeqConfig(**SIZES | special(tokenizer))))


@pytest.fixture(scope="module")
def bart(tokenizer):
    return make_bart(tokenizer)


def generated(model, tokenizer, text, decoder=None, **settings):
    """Predictions of `generate()` for a single text, and their ids."""
    ids = tokenizer(text, return_tensors="pt").input_ids
    rows = model.generate(ids, **{"num_beams": 4, "max_new_tokens": POSITIONS - 1} | settings).tolist()
    texts = [(decoder or tokenizer).decode(row, skip_special_tokens=True) for row in rows]
    return texts, rows


@pytest.mark.parametrize("make", [make_bart, make_marian, make_t5, make_macaron, make_iot])
@pytest.mark.parametrize("task", ["text2text-generation", "summarization", "translation", "translation_de_to_en"])
@pytest.mark.representatives(6)
def test_answers_as_generate_does_for_single_texts(make, task, tokenizer, tmp_path):
    key = {"text2text-generation": "generated", "summarization": "summary"}.get(task, "translation")
    make(tokenizer).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    # Marian's sinusoids are made anew
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    pipe = pipeline(task, model=str(tmp_path), device="cpu", max_new_tokens=11)
    expected = [generated(model, tokenizer, text, max_new_tokens=11)[0][0] for text in TEXTS]
    assert len(set(expected)) == len(TEXTS)
    assert [pipe(text) for text in TEXTS] == [[{f"{key}_text": answer}] for answer in expected]
    for batch_size in (1, 2, 3):
        assert pipe(TEXTS, batch_size=batch_size) == [{f"{key}_text": answer} for answer in expected]


def test_takes_texts_in_every_form(bart, tokenizer):
    pipe = Text2TextGenerationPipeline(bart, tokenizer, device="cpu", max_new_tokens=9, batch_size=2)
    expected = [pipe(text) for text in TEXTS]
    flat = [answers[0] for answers in expected]
    data = Dataset.from_dict({"text": TEXTS})
    assert pipe(TEXTS) == pipe(tuple(TEXTS)) == pipe(data["text"]) == flat
    assert pipe(TEXTS[:1]) == flat[:1]
    assert pipe([]) == []
    # what a call says holds for this call
    assert pipe(TEXTS, max_new_tokens=2) != flat == pipe(TEXTS)
    stream = iter(pipe(text for text in TEXTS))
    assert next(stream) == expected[0]
    assert list(stream) == expected[1:]
    assert list(pipe(KeyDataset(data, "text"))) == expected


def test_returns_several_sequences_for_each_text(bart, tokenizer):
    settings = {"num_return_sequences": 3, "num_beams": 5, "max_new_tokens": 9}
    pipe = SummarizationPipeline(bart, tokenizer, device="cpu", **settings)
    expected = [[{"summary_text": t} for t in generated(bart, tokenizer, text, **settings)[0]] for text in TEXTS]
    assert all(len({answer["summary_text"] for answer in answers}) > 1 for answers in expected)
    assert pipe(TEXTS[0]) == expected[0]
    assert pipe(TEXTS, batch_size=3) == expected
    assert pipe(TEXTS[:1]) == expected[:1]


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("make", [make_bart, make_t5])
def test_returns_token_ids_without_the_padding_of_a_batch(make, num_beams, tokenizer):
    model = make(tokenizer)
    pipe = TranslationPipeline(model, tokenizer, device="cpu", return_tensors=True)
    lengths = set()
    # the end becomes more likely with each token
    settings = {"max_new_tokens": 40, "exponential_decay_length_penalty": (2, 1.03), "num_beams": num_beams}
    for text, answer in zip(TEXTS, pipe(TEXTS, batch_size=3, **settings), strict=True):
        _, (expected,) = generated(model, tokenizer, text, **settings)
        assert answer.keys() == {"translation_token_ids"}
        assert answer["translation_token_ids"].tolist() == expected
        lengths.add(len(expected))
    assert len(lengths) > 1
    both = pipe(TEXTS[0], return_text=True)[0]
    assert both.keys() == {"translation_text", "translation_token_ids"}
    assert both["translation_text"] == tokenizer.decode(both["translation_token_ids"], skip_special_tokens=True)


def test_a_tokenizer_that_pads_on_the_left_does_not_shift_positions(bart, tokenizer):
    left = copy.deepcopy(tokenizer)
    left.padding_side = "left"
    pipe = Text2TextGenerationPipeline(bart, left, device="cpu", max_new_tokens=9)
    assert pipe(TEXTS, batch_size=3) == [pipe(text)[0] for text in TEXTS]


def test_cleans_spaces_up_only_when_told(bart, tokenizer):
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.backend_tokenizer.decoder = decoders.WordPiece(cleanup=False)
    words = tokenizer("bob came.", add_special_tokens=False).input_ids
    bart = copy.deepcopy(bart)
    bart.generate = lambda **kwargs: torch.tensor([words])
    pipe = Text2TextGenerationPipeline(bart, tokenizer, device="cpu")
    assert pipe("Bob.") == [{"generated_text": "bob came ."}]
    assert pipe("Bob.", clean_up_tokenization_spaces=True) == [{"generated_text": "bob came."}]


def test_stops_at_a_text(bart, tokenizer):
    pipe = Text2TextGenerationPipeline(bart, tokenizer, device="cpu", num_beams=1, return_tensors=True)
    ids = pipe(TEXTS[1])[0]["generated_token_ids"].tolist()
    stop = tokenizer.decode(ids[: len(ids) // 2])[-3:]
    end = next(n for n in range(len(ids)) if stop in tokenizer.decode(ids[:n]))
    assert 2 < end < len(ids)
    assert pipe(TEXTS[1], stop_sequence=stop)[0]["generated_token_ids"].tolist() == ids[:end]


@pytest.fixture
def settings_of(tokenizer):
    """The settings that reach `generate()` with given settings of the model, the task, the pipeline and the call."""

    def settings_of(call, pipe=None, task=None, model=None, positions=512):
        params = {"task_specific_params": {"summarization": task or {}, "translation": {"num_beams": 7}}}
        bart = make_bart(tokenizer, max_position_embeddings=positions, **params)
        bart.generation_config.update(**model or {})
        seen = {}
        generate = bart.generate

        def spy(**kwargs):
            config, _ = bart._prepare_generation_config(kwargs["generation_config"])
            seen.update(config.to_dict())
            return generate(**kwargs | {"generation_config": GenerationConfig(num_beams=1, max_new_tokens=1)})

        bart.generate = spy
        SummarizationPipeline(bart, tokenizer, task="summarization", device="cpu", **pipe or {})(TEXTS[0], **call)
        return seen

    return settings_of


def test_the_nearest_setting_counts(settings_of, tokenizer):
    def beams(*args, **kwargs):
        return settings_of(*args, **kwargs)["num_beams"]

    assert beams({}) == 4
    assert beams({}, model={"num_beams": 2}) == 2
    assert beams({}, model={"num_beams": 2}, task={"num_beams": 3}) == 3
    assert beams({}, {"num_beams": 5}, model={"num_beams": 2}, task={"num_beams": 3}) == 5
    assert beams({"num_beams": 6}, {"num_beams": 5}, task={"num_beams": 3}) == 6
    assert beams({"generation_config": GenerationConfig(num_beams=6)}, {"num_beams": 5}, task={"num_beams": 3}) == 6
    assert beams({}, {"generation_config": GenerationConfig(num_beams=5)}, task={"num_beams": 3}) == 5
    assert beams({"num_beams": 6, "generation_config": GenerationConfig(num_beams=5)}) == 6
    assert settings_of({}, model={"pad_token_id": None})["pad_token_id"] == tokenizer.pad_token_id


def test_one_length_counts(settings_of):
    def lengths(*args, **kwargs):
        settings = settings_of(*args, **kwargs)
        return settings["max_length"], settings["max_new_tokens"]

    assert lengths({})[1] == 256
    assert lengths({}, positions=64)[1] == 63
    assert lengths({"max_length": 20}) == (20, None)
    assert lengths({}, {"max_length": 20}) == (20, None)
    assert lengths({}, task={"max_length": 20}) == (20, None)
    assert lengths({}, model={"max_length": 20}) == (20, None)
    assert lengths({"max_new_tokens": 9}, task={"max_length": 20})[1] == 9
    assert lengths({"max_length": 9}, {"max_new_tokens": 20}) == (9, None)
    # generate() would heed the model's number
    assert lengths({"max_length": 9}, model={"max_new_tokens": 20})[1] == 8
    assert lengths({"max_new_tokens": 9}, model={"max_new_tokens": 30})[1] == 9
    assert lengths({}, model={"max_new_tokens": 30})[1] == 30


def test_puts_the_prefix_of_the_task_before_a_text(tokenizer):
    params = {"translation_en_to_de": {"prefix": "Ann: "}, "summarization": {"prefix": "long: "}}
    model = make_t5(tokenizer, task_specific_params=copy.deepcopy(params), prefix="Rome: ")
    tasks = {"translation_en_to_de": "Ann: ", "summarization": "long: ", "translation": "Rome: "}
    answers = set()
    for task, prefix in tasks.items():
        pipe = pipeline(task, model=model, tokenizer=tokenizer, device="cpu", max_new_tokens=9)
        (answer,) = pipe(TEXTS[0])[0].values()
        assert answer == generated(model, tokenizer, prefix + TEXTS[0], max_new_tokens=9)[0][0]
        answers.add(answer)
    assert len(answers) == 3
    assert model.config.task_specific_params == params


def test_generates_with_a_smaller_model(tokenizer, tmp_path):
    model, assistant = make_t5(tokenizer), make_t5(tokenizer, d_model=8)
    for each in (model, assistant):
        each.generation_config.no_repeat_ngram_size = None
    assistant.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    calls = []
    assistant.register_forward_hook(lambda *_: calls.append(1))
    expected = [{"translation_text": generated(model, tokenizer, t, num_beams=1)[0][0]} for t in TEXTS]
    pipe = TranslationPipeline(model, tokenizer, device="cpu", assistant_model=assistant, max_new_tokens=POSITIONS - 1)
    assert pipe(TEXTS) == expected
    assert calls
    pipe = TranslationPipeline(model, tokenizer, device="cpu", max_new_tokens=POSITIONS - 1)
    assert pipe(TEXTS, assistant_model=str(tmp_path)) == expected
    assert pipe(TEXTS, prompt_lookup_num_tokens=2) == expected


def pieces(kind):
    """A tokenizer of several languages whose vocabulary has the letters, and a language's name among the pieces."""
    words = ["<s>", "<pad>", "</s>", "<unk>", "▁", *"abcdefghijklmnopqrstuvwxyzABIPR.,", "en"]
    if kind is NllbTokenizer:
        return kind(vocab={word: i for i, word in enumerate(words)}, merges=[])
    return kind(vocab=[(word, -1.0) for word in words])


@pytest.mark.parametrize(
    ("kind", "source", "target", "other"),
    [(MBartTokenizer, "en_XX", "ro_RO", "de_DE"), (NllbTokenizer, "eng_Latn", "ron_Latn", "deu_Latn")],
)
def test_translates_between_the_languages_of_a_tokenizer(kind, source, target, other):
    tokenizer = pieces(kind)
    model = make_bart(tokenizer, max_position_embeddings=96)
    answers = {}
    for pair in [(source, target), (source, other), (other, target)]:
        from_language = copy.deepcopy(tokenizer)
        from_language.src_lang = pair[0]
        first = from_language.convert_tokens_to_ids(pair[1])
        answers[pair] = [
            {"translation_text": generated(model, from_language, t, forced_bos_token_id=first, max_new_tokens=20)[0][0]}
            for t in TEXTS
        ]
    assert len({str(answer) for answer in answers.values()}) == 3
    pipe = pipeline(
        f"translation_{source}_to_{target}", model=model, tokenizer=tokenizer, device="cpu", max_new_tokens=20
    )
    assert pipe(TEXTS, batch_size=3) == answers[source, target]
    assert pipe(TEXTS, tgt_lang=other) == answers[source, other]
    assert pipe(TEXTS, src_lang=other) == answers[other, target]
    pipe = pipeline("translation", model=model, tokenizer=tokenizer, src_lang=source, max_new_tokens=20, device="cpu")
    config = GenerationConfig(num_beams=4, max_new_tokens=20)
    assert pipe(TEXTS, tgt_lang=target, generation_config=config) == answers[source, target]
    for language in ("en", "xx_XX"):
        with pytest.raises(
            ValueError, match=f"tgt_lang='{language}' is no language of {kind.__name__}; give .*{other}"
        ):
            pipe(TEXTS, tgt_lang=language)
        with pytest.raises(ValueError, match=f"src_lang='{language}' is no language"):
            pipe(TEXTS, tgt_lang=target, src_lang=language)
    with pytest.raises(ValueError, match="tgt_lang=None is no language"):
        pipe(TEXTS)


def test_decodes_with_the_tokenizer_of_the_target_side(tokenizer, tmp_path):
    target = make_tokenizer("der brief kam")
    separate = {"encoder_vocab_size": len(tokenizer), "share_encoder_decoder_embeddings": False}
    model = make_macaron(target, **separate)
    assert len(tokenizer) > len(target)
    expected = [
        {"translation_text": generated(model, tokenizer, text, target, max_new_tokens=9)[0][0]} for text in TEXTS
    ]
    with pytest.raises(
        ValueError, match=r"encoder_vocab_size=\d+ says .*'' has no tokenizer in 'target_tokenizer'; giv"
    ):
        TranslationPipeline(model, tokenizer, device="cpu")
    target.save_pretrained(tmp_path / "target")
    for given in (target, str(tmp_path / "target")):
        pipe = TranslationPipeline(model, tokenizer, device="cpu", target_tokenizer=given, max_new_tokens=9)
        assert pipe(TEXTS) == pipe(TEXTS, batch_size=3) == expected
    pipe.save_pretrained(tmp_path / "saved")
    saved = str(tmp_path / "saved")
    loaded = pipeline("translation", model=saved, max_new_tokens=9, device="cpu", trust_remote_code=True)
    assert loaded(TEXTS) == expected
    with pytest.raises(ValueError, match="has no tokenizer in 'target_tokenizer'"):
        TranslationPipeline(copy.deepcopy(model), tokenizer, device="cpu")


def test_long_texts_are_cut_when_told(bart, tokenizer):
    pipe = Text2TextGenerationPipeline(bart, tokenizer, device="cpu", max_new_tokens=9)
    long = "Ann wrote " * 40
    length = len(tokenizer(long).input_ids)
    message = f"has {length} tokens, more than the {POSITIONS} that the model reads; shorten it, or cut it with trunc"
    with pytest.raises(ValueError, match=f"the text {message}"):
        pipe(long)
    with pytest.raises(ValueError, match=f"text 2 {message}"):
        pipe([*TEXTS[:2], long], batch_size=2)
    cut = "Ann wrote " * ((POSITIONS - 2) // 2)
    assert pipe(long, truncation=True) == pipe(cut)
    short = copy.deepcopy(tokenizer)
    short.model_max_length = 8
    pipe = Text2TextGenerationPipeline(bart, short, device="cpu", max_new_tokens=9, truncation=True)
    assert pipe(long) == pipe("Ann wrote " * 3)
    t5 = make_t5(tokenizer)
    pipe = Text2TextGenerationPipeline(t5, tokenizer, device="cpu", max_new_tokens=9)
    assert pipe(long) == [{"generated_text": generated(t5, tokenizer, long, max_new_tokens=9)[0][0]}]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("", "the text is ''; give texts that are not empty"),
        (3, "the text is 3; give texts"),
        (["Bob.", " "], "text 1 is ' '; give texts"),
        (["Bob.", None], "text 1 is None; give texts"),
        (({"text": "Bob."} for _ in range(2)), "the text is {'text': 'Bob.'}; give texts"),
    ],
)
def test_says_in_one_sentence_what_is_wrong(texts, message, bart, tokenizer):
    pipe = Text2TextGenerationPipeline(bart, tokenizer, device="cpu", max_new_tokens=3)
    with pytest.raises(ValueError, match=message):
        list(pipe(texts))


def test_refuses_a_model_that_is_no_encoder_decoder(tokenizer):
    gpt2 = GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=len(tokenizer)))
    with pytest.raises(ValueError, match="GPT2LMHeadModel is no encoder-decoder that generates"):
        pipeline("translation", model=gpt2, tokenizer=tokenizer)


def test_default_models_are_those_of_version_4():
    t5 = ("google-t5/t5-base", "a9723ea")
    models = {"summarization": ("sshleifer/distilbart-cnn-12-6", "a4f8f3e")}
    models |= dict.fromkeys(("text2text-generation", "translation", "translation_en_to_ro"), t5)
    for task, model in models.items():
        _, implementation, options = pipelines.check_task(task)
        assert get_default_model_and_revision(implementation, options) == model
    with pytest.raises(ValueError, match=r"default models for options \('de', 'fr'\)"):
        pipeline("translation_de_to_fr")
    with pytest.raises(KeyError, match="translation_defr"):
        pipeline("translation_defr")

"""Sentence encoders and rerankers of other people give the same answers in our classes."""

import copy

import pytest
import sentence_transformers
import torch
from common_convert import make
from sentence_transformers.cross_encoder.modules import LogitScore
from sentence_transformers.sentence_transformer import modules
from tiny_encoders import PAIRS, SOURCES, TEXTS, save

from sublayers import (
    PARBertForMaskedLM,
    PARBertForSequenceClassification,
    PARBertModel,
    SandwichLMForCausalLM,
    SandwichLMModel,
    optimize,
    restore,
)

pytestmark = pytest.mark.slow

POOLINGS = ["cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken", ("cls", "mean")]


@pytest.fixture(params=SOURCES)
def encoder(request, tmp_path):
    body = modules.Transformer(str(save(tmp_path, request.param, **SOURCES[request.param])))
    pooling = modules.Pooling(body.get_embedding_dimension(), "mean")
    prompts = {"query": "another text: "}
    return sentence_transformers.SentenceTransformer(
        modules=[body, pooling, modules.Normalize()], device="cpu", prompts=prompts, similarity_fn_name="dot"
    )


def embed(encoder, **options):
    return encoder.encode(TEXTS, convert_to_tensor=True, **options)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_embeddings_are_the_same(encoder, pooling, side):
    encoder[1].pooling_mode = pooling
    # BERT counts padding on the left as positions, so that a text means another one in every batch
    encoder.tokenizer.padding_side = "right" if encoder[0].model.config.model_type == "bert" else side
    ours = optimize(encoder)
    torch.testing.assert_close(embed(ours), embed(encoder), rtol=1e-4, atol=1e-5)
    # what is pooled behind a prompt is another token
    ours[1].include_prompt = encoder[1].include_prompt = False
    again = optimize(restore(ours))
    for each in (encoder, again):
        each[1].include_prompt = False
    torch.testing.assert_close(
        embed(optimize(again), prompt_name="query"), embed(encoder, prompt_name="query"), rtol=1e-4, atol=1e-5
    )


def test_all_but_the_model_is_kept_and_goes_back(encoder, tmp_path):
    before = copy.deepcopy(encoder[0].modality_config)
    encoder[1].pooling_mode = "cls"
    ours = optimize(encoder, verify=True)
    assert type(ours) is type(encoder)
    assert isinstance(ours[0].model, (PARBertModel, SandwichLMModel))
    assert (ours.prompts, ours.similarity_fn_name) == (encoder.prompts, encoder.similarity_fn_name)
    assert encoder[0].modality_config == before
    again = restore(ours)
    assert again[0].model is encoder[0].model
    assert again[0].modality_config == before
    ours.save(str(tmp_path / "ours"))
    opened = sentence_transformers.SentenceTransformer(str(tmp_path / "ours"), device="cpu")
    torch.testing.assert_close(embed(opened), embed(encoder), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "pooling"), [("BertModel", "cls"), ("Qwen3Model", "lasttoken")])
def test_only_what_is_pooled_leaves_the_last_attention(name, pooling, tmp_path):
    body = modules.Transformer(str(save(tmp_path, name, **SOURCES[name])))
    encoder = sentence_transformers.SentenceTransformer(
        modules=[body, modules.Pooling(body.get_embedding_dimension(), pooling)], device="cpu"
    )
    ours = optimize(encoder)
    sizes = []
    last = [module for module in ours.modules() if type(module).__name__ == "FeedForward"][-1]
    last.register_forward_hook(lambda _, args, output: sizes.append(args[0].shape[:-1].numel()))
    embed(ours)
    assert sizes == [len(TEXTS)]


def test_a_reranker_scores_alike(tmp_path):
    folder = save(tmp_path / "source", "BertForSequenceClassification", num_labels=1)
    reranker = sentence_transformers.CrossEncoder(str(folder), device="cpu", activation_fn=torch.nn.Tanh())
    ours = optimize(reranker, verify=True)
    assert isinstance(ours.model, PARBertForSequenceClassification)
    expected = reranker.predict(PAIRS)
    assert ours.predict(PAIRS) == pytest.approx(expected, abs=1e-5)
    documents = [second for _, second in PAIRS]
    assert [row["corpus_id"] for row in ours.rank("a text", documents)] == [
        row["corpus_id"] for row in reranker.rank("a text", documents)
    ]
    ours.save_pretrained(str(tmp_path / "ours"))
    opened = sentence_transformers.CrossEncoder(str(tmp_path / "ours"), device="cpu")
    assert opened.predict(PAIRS) == pytest.approx(expected, abs=1e-5)
    assert restore(ours).model is reranker.model


@pytest.mark.parametrize("name", ["BertForMaskedLM", "DistilBertForMaskedLM"])
def test_a_sparse_encoder_weighs_words_alike(name, tmp_path):
    encoder = sentence_transformers.SparseEncoder(str(save(tmp_path / "source", name)), device="cpu")
    ours = optimize(encoder, verify=True)
    assert type(ours) is type(encoder)
    assert isinstance(ours[0].model, PARBertForMaskedLM)
    expected = encoder.encode(TEXTS, convert_to_sparse_tensor=False)
    assert expected.any()
    torch.testing.assert_close(ours.encode(TEXTS, convert_to_sparse_tensor=False), expected, rtol=1e-4, atol=1e-6)
    ours.save_pretrained(str(tmp_path / "ours"))
    opened = sentence_transformers.SparseEncoder(str(tmp_path / "ours"), device="cpu")
    torch.testing.assert_close(opened.encode(TEXTS, convert_to_sparse_tensor=False), expected, rtol=1e-4, atol=1e-6)
    assert restore(ours)[0].model is encoder[0].model


@pytest.mark.parametrize("name", SOURCES)
def test_an_encoder_of_many_vectors_gives_each_token_the_same_one(name, tmp_path):
    encoder = sentence_transformers.MultiVectorEncoder(str(save(tmp_path, name, **SOURCES[name])), device="cpu")
    if name == "BertModel":
        encoder[0].query_expansion = {"strategy": "fixed", "attend": True, "length": 30, "token": "[MASK]"}
    ours = optimize(encoder, verify=True)
    assert type(ours) is type(encoder)
    assert isinstance(ours[0].model, (PARBertModel, SandwichLMModel))
    for read in ("encode_query", "encode_document"):
        for found, expected in zip(getattr(ours, read)(TEXTS), getattr(encoder, read)(TEXTS), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert restore(ours)[0].model is encoder[0].model


def test_queries_that_are_expanded_by_masked_tokens_are_refused(tmp_path):
    encoder = sentence_transformers.MultiVectorEncoder(str(save(tmp_path, "BertModel")), device="cpu")
    encoder[0].query_expansion = {"strategy": "fixed", "length": 30, "token": "[MASK]"}
    with pytest.raises(ValueError, match=r"the query_expansion .* reads tokens that are masked like padding"):
        optimize(encoder)


def test_a_language_model_that_says_yes_or_no_scores_its_last_token(tmp_path):
    folder = save(tmp_path, "Qwen3ForCausalLM", **SOURCES["Qwen3Model"])
    body = modules.Transformer(str(folder), transformer_task="text-generation")
    words = body.tokenizer.convert_tokens_to_ids(["yes", "no"])
    reranker = sentence_transformers.CrossEncoder(modules=[body, LogitScore(*words)], device="cpu")
    ours = optimize(reranker)
    assert isinstance(ours.model, SandwichLMForCausalLM)
    sizes = []
    ours.model.lm_head.register_forward_hook(lambda _, args, output: sizes.append(output.shape[:-1].numel()))
    assert ours.predict(PAIRS) == pytest.approx(reranker.predict(PAIRS), abs=1e-5)
    assert sizes == [len(PAIRS)]


def test_a_query_before_many_passages_is_read_once(tmp_path):
    folder = save(tmp_path, "Qwen3ForCausalLM", **SOURCES["Qwen3Model"])
    body = modules.Transformer(str(folder), transformer_task="text-generation")
    words = body.tokenizer.convert_tokens_to_ids(["yes", "no"])
    reranker = sentence_transformers.CrossEncoder(modules=[body, LogitScore(*words)], device="cpu")
    ours, query = optimize(reranker), " ".join(TEXTS)
    passages = ["a text", "one", "a longer text and then a short one", "another", "one and a short one"] * 3
    read = []
    first = ours.model.model.layers[0]
    first.register_forward_hook(lambda _, args, output: read.append(output.shape[:-1].numel()))
    assert ours.predict([(query, text) for text in passages]) == pytest.approx(
        reranker.predict([(query, text) for text in passages]), abs=1e-5
    )
    shared = len(body.tokenizer(query)["input_ids"]) - 1
    assert read[0] >= shared
    assert sum(read) < 2 * shared + sum(len(body.tokenizer(text)["input_ids"]) for text in passages)


def test_adapters_are_refused():
    peft = pytest.importorskip("peft")
    model = make("BertModel")
    with pytest.raises(ValueError, match=r"PeftModel.* cannot be optimized; give a model of transformers"):
        optimize(peft.get_peft_model(copy.deepcopy(model), peft.LoraConfig(target_modules=["query"])))
    # as if PEFT had been as new as transformers' own adapters need
    model._hf_peft_config_loaded = True
    with pytest.raises(ValueError, match="BertModel has adapters; merge them into its weights first"):
        optimize(model)


def test_weights_that_torchao_packed_are_refused():
    torchao = pytest.importorskip("torchao.quantization")
    model = make("BertModel")
    torchao.quantize_(model, torchao.Int8WeightOnlyConfig())
    with pytest.raises(ValueError, match="is quantized, sharded or without values"):
        optimize(model)
    dynamic = torch.ao.quantization.quantize_dynamic(make("BertModel"))
    with pytest.raises(ValueError, match="cannot be optimized"):
        optimize(dynamic)

"""Sentence encoders, among them those that compute what pooling by the first token reads, and nothing else."""

import json

import datasets
import pytest
import sentence_transformers
import torch
from launched import python
from sentence_transformers.sentence_transformer import modules
from tiny_models import save_model
from transformers import AutoModel

pytestmark = pytest.mark.slow

TEXTS = ["a short text", "another one, and a longer text, and then a short one", "one"]
# each ends in feed-forward sublayers only
ORDERS = {"par_bert": "sfsff", "macaron_bert": "fsfsff"}
every_family = pytest.mark.parametrize("family", ORDERS)

STRANGER = """
import sys
sys.modules["sublayers"] = None
import torch
from sentence_transformers import SentenceTransformer

folder, texts = sys.argv[1], sys.argv[2:]
encoder = SentenceTransformer(folder, device="cpu", trust_remote_code=True)
torch.save(encoder.encode(texts, convert_to_tensor=True), folder + "/embedded.pt")
encoder.save(folder + "/again")
"""


def save(folder, family="par_bert", head=AutoModel, kind="wordpiece"):
    order = {"sublayer_order": ORDERS[family]} if family in ORDERS else {}
    return save_model(folder, family, head, TEXTS, kind, 300, **order)


def modality_config(method):
    return {"text": {"method": method, "method_output_name": "last_hidden_state"}}


def load_encoder(folder, method="forward_first_token", side="right"):
    config = {"modality_config": modality_config(method), "module_output_name": "token_embeddings"}
    body = modules.Transformer(str(folder), **config, processor_kwargs={"padding_side": side})
    pooling = modules.Pooling(body.get_embedding_dimension(), "cls")
    return sentence_transformers.SentenceTransformer(modules=[body, pooling], device="cpu")


def embed(encoder, texts=TEXTS, **options):
    return encoder.encode(texts, convert_to_tensor=True, **options)


def assert_same(found, expected):
    # products of more or fewer rows are rounded in another way
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=5e-6)


@every_family
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_text_is_what_its_first_token_is_among_all_tokens(family, side, tmp_path):
    model, tokenizer = save(tmp_path, family)
    found = embed(load_encoder(tmp_path, side=side))
    assert_same(found, embed(load_encoder(tmp_path, "forward", side)))
    for text, embedded in zip(TEXTS, found, strict=True):
        with torch.no_grad():
            states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state
        torch.testing.assert_close(embedded, states[0, 0], rtol=1e-5, atol=1e-5)


@every_family
def test_the_tail_runs_on_one_token_of_each_text(family, tmp_path):
    save(tmp_path, family)
    counted = {}
    for method in ("forward", "forward_first_token"):
        encoder, counts = load_encoder(tmp_path, method), []
        for layer in encoder[0].model.layers:
            layer.register_forward_hook(lambda _, args, out, counts=counts: counts.append(out[..., 0].numel()))
        embed(encoder)
        counted[method] = counts
    tokens = counted["forward"][0]
    attention = ORDERS[family].rindex("s")
    assert tokens > 3 * len(TEXTS)
    assert counted["forward"] == [tokens] * len(ORDERS[family])
    assert counted["forward_first_token"] == [tokens] * attention + [len(TEXTS)] * (len(ORDERS[family]) - attention)


@every_family
def test_prompts_and_truncation(family, tmp_path):
    model, tokenizer = save(tmp_path, family)
    encoder = load_encoder(tmp_path)
    encoder.prompts = {"query": "a short one, "}
    encoder.max_seq_length = 8
    found = embed(encoder, prompt_name="query", truncate_dim=20)
    for text, embedded in zip(TEXTS, found, strict=True):
        ids = tokenizer("a short one, " + text, truncation=True, max_length=8, return_tensors="pt")
        with torch.no_grad():
            expected = model(**ids).last_hidden_state[0, 0, :20]
        torch.testing.assert_close(embedded, expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(found, embed(encoder, truncate_dim=20), atol=1e-2)


def test_an_encoder_that_is_set_to_the_first_token_stays_so_when_it_is_saved(tmp_path):
    save(tmp_path)
    encoder = load_encoder(tmp_path, "forward")
    expected = embed(encoder)
    encoder[0].modality_config = modality_config("forward_first_token")
    encoder.save(str(tmp_path / "saved"))
    again = sentence_transformers.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    assert again[0].modality_config == modality_config("forward_first_token")
    assert_same(embed(again), expected)


@every_family
@pytest.mark.full
def test_a_stranger_embeds_with_a_self_contained_folder(family, tmp_path):
    model, _ = save(tmp_path / "plain", family)
    model.save_pretrained(tmp_path / "plain", self_contained=True)
    encoder = load_encoder(tmp_path / "plain")
    encoder.save(str(tmp_path / "encoder"))
    python("-c", STRANGER, tmp_path / "encoder", *TEXTS, home=tmp_path)
    assert_same(torch.load(tmp_path / "encoder" / "embedded.pt"), embed(encoder))
    # what a stranger saves has the code, too, and says which method to run
    assert (tmp_path / "encoder" / "again" / f"modeling_{family}.py").exists()
    settings = json.loads((tmp_path / "encoder" / "again" / "sentence_bert_config.json").read_text())
    assert settings["modality_config"] == modality_config("forward_first_token")


@every_family
def test_training_changes_the_weights_as_it_does_where_all_tokens_are_computed(family, tmp_path):
    save(tmp_path, family)
    pairs = {"first": TEXTS * 2, "second": TEXTS[::-1] * 2, "score": [0.1, 0.9, 0.4, 0.2, 0.8, 0.5]}
    trained = []
    for method in ("forward", "forward_first_token"):
        encoder = load_encoder(tmp_path, method)
        start = embed(encoder)
        # Adam makes large steps of gradients that are zero but for rounding
        settings = {"max_steps": 3, "per_device_train_batch_size": 3, "learning_rate": 0.1, "optim": "sgd"}
        settings |= {"use_cpu": True, "save_strategy": "no", "report_to": "none", "disable_tqdm": True}
        arguments = sentence_transformers.SentenceTransformerTrainingArguments(str(tmp_path / "out"), **settings)
        loss = sentence_transformers.sentence_transformer.losses.CosineSimilarityLoss(encoder)
        rows = datasets.Dataset.from_dict(pairs)
        sentence_transformers.SentenceTransformerTrainer(encoder, arguments, train_dataset=rows, loss=loss).train()
        assert not torch.allclose(embed(encoder), start, atol=1e-3)
        trained.append(encoder)
    everything, first = (dict(encoder[0].model.named_parameters()) for encoder in trained)
    for name, parameter in everything.items():
        torch.testing.assert_close(first[name], parameter, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.full
def test_several_processes_embed_alike(tmp_path):
    save(tmp_path)
    encoder = load_encoder(tmp_path)
    together = encoder.encode(TEXTS, device=["cpu", "cpu"], chunk_size=2, convert_to_tensor=True)
    assert_same(together, embed(encoder))


# texts are pooled by their mean, those of causal models by their last token
@pytest.mark.parametrize("family", ["par_bert", "macaron_bert", "sandwich_lm"])
def test_embeds_texts_as_they_are_pooled_by_hand(family, tmp_path):
    is_causal = family == "sandwich_lm"
    model, tokenizer = save(tmp_path, family, None, "bpe" if is_causal else "wordpiece")
    encoder = sentence_transformers.SentenceTransformer(str(tmp_path), device="cpu")
    # in one padded batch
    together = embed(encoder)
    for text, embedded in zip(TEXTS, together, strict=True):
        with torch.no_grad():
            states = model.base_model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        expected = states[-1] if is_causal else states.mean(0)
        torch.testing.assert_close(embedded, expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(embed(encoder, text), expected, atol=1e-5, rtol=1e-5)
    encoder.save(str(tmp_path / "saved"))
    again = sentence_transformers.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    assert torch.equal(embed(again), together)

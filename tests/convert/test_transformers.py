"""Models of transformers, converted by the command, compute the same, and every tensor is accounted for."""

import copy
from typing import NamedTuple

import pytest
import torch
import transformers
from common import gradients, tokens
from common_convert import CAUSAL, HEADS, PAIR_HEADS, SOURCES, assert_complete, convert, follow, in_turn, make
from transformers import PreTrainedModel

from sublayers.convert.verify import measures_places

# the longer ends of names come first
AUTO_CLASSES = {head: f"AutoModel{head}" for head in [*HEADS[1:], "ForCausalLM", *PAIR_HEADS]}
AUTO_CLASSES |= dict.fromkeys(("ForConditionalGeneration", "MTModel"), "AutoModelForSeq2SeqLM")
AUTO_CLASSES |= {"LMHeadModel": "AutoModelForCausalLM", "Model": "AutoModel"}


class Pair(NamedTuple):
    """A model of transformers, what the command made of it, its report, and where it was saved."""

    name: str
    source: PreTrainedModel
    model: PreTrainedModel
    report: dict
    folder: object


@pytest.fixture(scope="module", params=in_turn(SOURCES, lambda name: name.rsplit(" ", 1)[0]))
def pair(request, tmp_path_factory):
    folder, (name, options) = tmp_path_factory.mktemp("convert"), SOURCES[request.param]
    made = make(name, **options)
    if made.config.is_encoder_decoder:
        made.final_logits_bias.normal_()
    made.save_pretrained(folder / "source")
    # without what files do not hold, such as sinusoids
    source = type(made).from_pretrained(folder / "source")
    report = convert(folder, "--verify")
    head = next(known for known in AUTO_CLASSES if name.endswith(known))
    model = getattr(transformers, AUTO_CLASSES[head]).from_pretrained(folder / "ours")
    return Pair(request.param, source, model, report, folder)


def words(source, rows, length):
    """Tokens none of which is padding."""
    ids = tokens(rows, length)
    return ids + (ids == source.config.pad_token_id).long()


def padded(source, length=20):
    """Rows without padding, with padding on the right, on the left and in between, where ids say so as well."""
    config = source.config
    length = min(length, config.max_position_embeddings)
    mask = torch.ones(4, length, dtype=torch.long)
    mask[1, -6:] = mask[2, :6] = mask[3, 2:-1:4] = 0
    inputs = {"input_ids": words(source, 4, length).masked_fill(mask == 0, config.pad_token_id), "attention_mask": mask}
    if config.to_dict().get("type_vocab_size", 1) > 1:
        inputs["token_type_ids"] = (inputs["input_ids"] % 2) * mask
    if type(source).__name__.endswith("MultipleChoice"):
        inputs = {name: tensor[:, None] for name, tensor in inputs.items()}
    return inputs


def outputs(model, inputs):
    """All tensors that a model returns."""
    return {name: found for name, found in model(**inputs).items() if isinstance(found, torch.Tensor)}


@pytest.mark.representatives(60)
def test_the_report_accounts_for_every_tensor(pair):
    name, source, model, report, folder = pair
    # most bodies are trained without a pooler
    new = [f"pooler.dense.{kind}" for kind in ("weight", "bias")]
    new += ["pooler.norm.weight", *(["pooler.norm.bias"] if "biases" in name else [])] if "Modern" in name else []
    has_none = (
        name.endswith(" Model")
        and not any(part in name for part in ("of both sides", "EuroBert"))
        and getattr(source, "pooler", None) is None
    )
    assert sorted(report["new"]) == (sorted(new) if has_none else [])
    # zeros: the only segment, and biases that a head may lack
    one_segment = ("Distil", "MPNet", "Modern", "of both sides", "EuroBert", "without segments")
    zeros = {key for key in model.state_dict() if "token_types" in key and any(part in name for part in one_segment)}
    zeros |= {key for key in ("classifier.bias",) if "without labels' bias" in name and key in model.state_dict()}
    if name.startswith("Gte"):
        zeros |= {key for key in model.state_dict() if key.endswith(("mixer.gate.bias", "mixer.fc1.bias"))}
    if name.startswith("ModernBert") and "biases" not in name and not name.endswith(" Model"):
        zeros |= {"lm_transform.dense.bias", "model.pooler.dense.bias"} & model.state_dict().keys()
    assert not any(model.get_parameter(key).any() for key in zeros)
    assert_complete(report, source.state_dict(), folder / "ours", {*report["new"], *zeros})
    # untied, RoBERTa has a bias and BART a table that it does not read
    unread = {"Camembert ForMaskedLM": {"lm_head.bias"}}
    unread |= {f"{prefix} untied": {"model.shared.weight"} for prefix in ("Bart", "MBart", "Pegasus")}
    assert report["left_out"] == dict.fromkeys(unread.get(name, ()), "without a place in the model")


@pytest.mark.representatives(90)
@torch.no_grad()
def test_outputs_and_hidden_states(pair):
    source, model = pair.source, pair.model
    inputs = padded(source)
    if source.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = tokens(4, 7)
    found = model(**inputs, output_hidden_states=True)
    # a window is measured in places, with what lies between them
    rows = range(3 if measures_places(model.config) else 4)
    for row, mask in zip(rows, inputs["attention_mask"], strict=False):
        real = mask.flatten().bool()
        alone = {name: tensor[row : row + 1] for name, tensor in inputs.items()}
        alone |= {name: tensor[..., real] for name, tensor in alone.items() if not name.startswith("decoder")}
        expected = source(**alone, output_hidden_states=True)
        for name, wanted in expected.items():
            # theirs are behind whole layers
            step = 3 if name.startswith("decoder") else 2
            pairs = [(found[name], wanted)] if isinstance(wanted, torch.Tensor) else []
            if name.endswith("hidden_states") and not pair.name.startswith("ModernBert"):
                pairs = zip(found[name][::step], wanted, strict=True)
            for ours, theirs in pairs:
                # hidden states have a row for each text of a choice
                ours = ours[row : row + 1]
                ours = ours if ours.shape == theirs.shape else ours[:, real]
                # states of some grow from layer to layer
                scale = max(1, theirs.abs().max().item()) if name.endswith("states") or "Modern" in pair.name else 1
                torch.testing.assert_close(
                    ours / scale, theirs / scale, atol=2e-5, rtol=1e-5, msg=lambda m, name=name: f"{name}: {m}"
                )


@pytest.mark.representatives(60)
@torch.no_grad()
def test_a_long_text_is_read_as_a_short_one(pair):
    source, model = pair.source, pair.model
    ids = words(source, 2, min(194, source.config.max_position_embeddings) - 4)
    ids = ids[None] if type(source).__name__.endswith("MultipleChoice") else ids
    inputs = {"input_ids": ids} | ({"decoder_input_ids": ids} if source.config.is_encoder_decoder else {})
    found, wanted = outputs(model, inputs), outputs(source, inputs)
    for name, expected in wanted.items():
        scale = max(1, expected.abs().max().item())
        torch.testing.assert_close(found[name] / scale, expected / scale, atol=1e-5, rtol=1e-5)


@pytest.mark.representatives(60)
def test_gradients(pair):
    name, source, model, report, _ = pair
    ids = words(source, 2, 9)
    inputs = {"input_ids": ids[None] if name.endswith("MultipleChoice") else ids}
    if any(head in type(source).__name__ for head in ("CausalLM", "LMHead", "MaskedLM", "Conditional", "MTModel")):
        inputs["labels"] = ids.clone()
        # mBART takes the start of a target from the end of its labels, where the language stands
        inputs["labels"][:, -1] = 60
    # the losses of all heads of BERT
    first, second = {"labels": torch.tensor([1, 0])}, torch.tensor([3, 2])
    inputs |= {
        "Bert ForPreTraining": {"labels": ids, "next_sentence_label": first["labels"]},
        "Bert ForNextSentencePrediction": first,
        "Bert ForSequenceClassification": first,
        "Bert ForTokenClassification": {"labels": ids % 2},
        "Bert ForMultipleChoice": {"labels": torch.tensor([1])},
        "Bert ForQuestionAnswering": {"start_positions": first["labels"], "end_positions": second},
    }.get(name, {})
    names = ["loss"] if len(inputs) > 1 else [*outputs(source, inputs)]
    # in 32 bits, sums of large numbers differ by more
    source, model = (copy.deepcopy(network).double() for network in (source, model))
    for network in (source, model):
        network.zero_grad()
        # grouped products of experts have 32 bits at most
        network.set_experts_implementation("eager")
        found = network(**inputs)
        sum(found[key].square().mean() for key in names).backward()
    wanted = {}
    for theirs, parameter in source.named_parameters(remove_duplicate=False):
        if parameter.grad is not None:
            made = report["taken_over"].get(theirs, {})
            wanted |= {ours: follow(parameter.grad, how) for ours, how in made.items()}
    for ours, gradient in gradients(model).items():
        if ours in wanted:
            expected = wanted[ours].view(gradient.shape)
            if name.startswith(("Pegasus", "Marian")) and "embed_tokens" in ours:
                # transformers does not train the padding that starts its targets
                padding = source.config.pad_token_id
                expected[padding] = gradient[padding]
            # norms and rotations of transformers stay in 32 bits
            torch.testing.assert_close(gradient, expected, atol=1e-5, rtol=1e-4, msg=lambda m, n=ours: f"{n}: {m}")
        else:
            # sinusoids are learned here, the only segment is not, and these biases are no part of some sources
            added = {"classifier.bias", "lm_transform.dense.bias", "model.pooler.dense.bias"}
            # which is a constant there
            added |= {"lm_head.bias"} if source.config.is_encoder_decoder else set()
            is_sinusoid = "embed_positions" in ours and name.startswith(("Pegasus", "Marian"))
            is_added = ours in added or (name.startswith("Gte") and ours.endswith(("gate.bias", "fc1.bias")))
            assert is_sinusoid or is_added or not gradient.any(), ours


LANGUAGE_MODELS = pytest.mark.parametrize("pair", [*CAUSAL, "GPT2 LMHeadModel"], indirect=True)


@pytest.mark.parametrize("options", [{}, {"cache_implementation": "static"}, {"num_beams": 3}], ids=str)
@LANGUAGE_MODELS
def test_continuations(options, pair):
    ids = tokens(3, 6)
    ids[1, :2] = ids[2, :4] = 1
    options = {"max_new_tokens": 9, "min_new_tokens": 9, "do_sample": False} | options
    networks = (pair.source, pair.model)
    wanted, found = (network.generate(ids, attention_mask=(ids != 1).long(), **options) for network in networks)
    assert torch.equal(found, wanted)


@LANGUAGE_MODELS
@torch.no_grad()
def test_half_precision_is_as_near_as_the_sources(pair):
    inputs = {name: tensor[:3] for name, tensor in padded(pair.source).items()}
    real = inputs["attention_mask"].bool()
    # which transformers has to be told
    places = {"position_ids": (real.cumsum(-1) - 1).clamp(min=0)}
    wanted = pair.source(**inputs, **places).logits
    theirs = copy.deepcopy(pair.source).bfloat16()(**inputs, **places).logits
    ours = copy.deepcopy(pair.model).bfloat16()(**inputs).logits
    ours_off, theirs_off = ((logits.float() - wanted)[real].square().mean().sqrt() for logits in (ours, theirs))
    # where scores round, a router chooses others
    assert ours_off < (2 if "e" in pair.model.config.order else 1.2) * theirs_off

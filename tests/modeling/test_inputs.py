"""What every head of every family says of inputs that it cannot read."""

import pytest
import torch
from common import tokens
from families import LABELS_OF_TOKENS, build, build_model, every_family, every_model, padded
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
)


def readable(model, auto_class) -> dict[str, torch.Tensor]:
    batch = padded(model, auto_class)
    # without labels, the choice of orders refuses to be trained
    return batch | {"labels": batch["decoder_input_ids"]} if auto_class is AutoModelForSeq2SeqLM else batch


def assert_refused(model, batch, message):
    for training in (False, True):
        with pytest.raises(ValueError, match=message) as caught:
            model.train(training)(**batch)
        assert "\n" not in str(caught.value)


@every_model
def test_neither_a_batch_nor_a_text_is_empty(config_class, auto_class):
    model = build_model(config_class, auto_class)
    batch = readable(model, auto_class)
    empty = r"must have shape \(batch, length(, hidden)?\), none of them 0, got \(0, 9"
    assert_refused(model, {name: rows[:0] for name, rows in batch.items()}, empty)
    assert_refused(model, {name: rows[:0] for name, rows in batch.items() if "mask" not in name}, empty)
    for prefix in ("", "decoder_"):
        ids, mask = f"{prefix}input_ids", f"{prefix}attention_mask"
        if ids in batch:
            none = {ids: batch[ids][..., :0], mask: batch[mask][..., :0]}
            assert_refused(model, batch | none, r"none of them 0, got \(\d, 0")


@every_model
def test_ids_are_integers_and_a_mask_has_their_shape(config_class, auto_class):
    model = build_model(config_class, auto_class)
    batch = readable(model, auto_class)
    for name, mask in [(name, rows) for name, rows in batch.items() if name.endswith("attention_mask")]:
        # of one row, one too deep, one token too short, of other rows, too long
        row = mask[0, ..., 0, :] if mask.ndim == 3 else mask[0]
        for wrong in (row, mask[..., None], mask[..., 1:], mask[:1], torch.cat([mask, mask], -1)):
            assert_refused(model, batch | {name: wrong}, f"^{name} must have the shape of the tokens")
        ids = name.replace("attention_mask", "input_ids")
        for dtype in (torch.float32, torch.float16):
            assert_refused(model, batch | {ids: batch[ids].to(dtype)}, f"input_ids must be integers .* got {dtype}")


@every_model
def test_there_are_as_many_labels_as_texts(config_class, auto_class):
    if auto_class is AutoModel:
        pytest.skip("a body has no labels")
    model = build_model(config_class, auto_class)
    batch = readable(model, auto_class)
    answers = auto_class is AutoModelForQuestionAnswering
    for rows in (1, 2, 4):
        wrong = tokens(rows, 9) % 2 if auto_class in LABELS_OF_TOKENS else torch.zeros(rows, dtype=torch.long)
        labels = {"start_positions": wrong, "end_positions": wrong} if answers else {"labels": wrong}
        message = "labels do not fit (3|27) scored rows|labels must have the shape of the tokens"
        assert_refused(model, batch | labels, message)
    if auto_class is AutoModelForPreTraining:
        assert_refused(
            model, batch | {"next_sentence_label": torch.zeros(2, dtype=torch.long)}, "2 labels do not fit 3"
        )


@pytest.mark.parametrize("problem_type", ["regression", "multi_label_classification"])
@pytest.mark.parametrize("family", ["sandwich_lm", "par_bert"])
def test_numbers_and_several_labels_are_as_many_as_texts(family, problem_type):
    model = build(family, AutoModelForSequenceClassification, num_labels=2, problem_type=problem_type)
    batch = padded(model, AutoModelForSequenceClassification)
    # the last has as many labels in all
    for shape in ((2, 2), (4, 2), (2, 3)):
        assert_refused(model, batch | {"labels": torch.zeros(shape)}, f"{shape[0]} labels do not fit 3 scored rows")


@pytest.mark.parametrize("auto_class", [AutoModelForMaskedLM, AutoModelForPreTraining])
def test_texts_of_one_token_have_labels(auto_class):
    model = build("par_bert", auto_class)
    ids, labels = tokens(3, 1), torch.tensor([[7], [-100], [9]])
    logits = model(ids)[0]
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    out = model(ids, labels=labels)
    torch.testing.assert_close(out.loss, expected)
    torch.testing.assert_close(out[1][[0, 2]], logits[[0, 2]])


@every_family
def test_generation_says_how_to_begin_without_a_prompt(family):
    model = build(family)
    if not model.can_generate():
        pytest.skip("it does not generate")
    options = {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False}
    name, inputs = "input_ids", {}
    if model.config.is_encoder_decoder:
        name, inputs = "decoder_input_ids", {"input_ids": tokens(2, 5)}
    first = "decoder_start_token_id" if inputs else "bos_token_id"
    message = rf"^{name} of shape \(\d, \d\) hold no token to go on from; leave them out to begin with {first}, or give"
    for empty in (tokens(2, 0), tokens(0, 4)):
        with pytest.raises(ValueError, match=message):
            model.generate(**inputs, **{name: empty}, **options)
        with pytest.raises(ValueError, match=r"hold no token|must have shape \(batch, length\), none of them 0"):
            model.generate(empty, **options)
    rows = len(inputs.get("input_ids", [0]))
    begun = torch.full((rows, 1), getattr(model.config, first))
    expected = model.generate(**{name: begun} | inputs, **options)
    assert torch.equal(model.generate(**inputs, **options), expected)

import pytest
import torch
from common import silence
from families import build
from tiny_teachers import TEXTS, save_teacher
from transformers import AutoModel, DistilBertConfig, DistilBertModel

from sublayers.training.distill.student import (
    choose_sublayers,
    keep_sublayers,
    make_student,
    nearest_order,
    set_dropout,
)
from sublayers.training.distill.teacher import CLASSIFIER, Teacher, answer, open_teacher


def ask(model, tokenizer, pooling="mean"):
    model.eval()
    with torch.no_grad():
        return answer(model, tokenizer(TEXTS, padding=True, return_tensors="pt"), pooling)


@pytest.mark.parametrize(
    ("order", "layers", "places", "start"),
    [
        ("(sf)4", None, [0, 1, 2, 3, 4, 5, 6, 7], "sfsfsfsf"),
        ("s4f4", None, [0, 2, 4, 6, 1, 3, 5, 7], "sfsfsfsf"),
        ("(sf)2", None, [0, 1, 6, 7], "sfsf"),
        ("s2f4", None, [0, 6, 1, 3, 5, 7], "sfffsf"),
        ("s2f3", [1, 3], [2, 6, 3, 7, None], "sfsff"),
        ("sf5s", None, [0, 1, 3, 5, 7, None, 6], "sfffsff"),
        ("f2", None, [1, 7], "ff"),
        ("(sf)3", None, [0, 1, 2, 3, 6, 7], "sfsfsf"),
    ],
)
def test_sublayers_come_from_those_of_the_same_kind(order, layers, places, start):
    assert choose_sublayers(order, "(sf)4", layers) == places
    assert nearest_order(places, "(sf)4") == start


@pytest.mark.parametrize(
    ("order", "layers", "message"),
    [
        ("s5f5", None, "the order s5f5 has 5 s, more than the 4 of the teacher; give one with fewer"),
        ("(sf)2", [0, 4], "--layers 0 4 is no rising list of the teacher's layers 0 to 3"),
        ("(sf)2", [2, 1], "--layers 2 1 is no rising list"),
        ("(sf)3", [0, 1], r"--layers 0 1 is for an order with 2 s and as many f or more, not \(sf\)3"),
        ("(s_0f)2", None, r"^\(s_0f\)2 has sublayers that run at several places"),
        ("gsf", None, "gsf has sublayers g, and a student in another order takes over s, m and f alone"),
        ("ssf", [0, 1], "--layers 0 1 is for an order with 2 s"),
    ],
)
def test_orders_and_layers_that_the_teacher_has_not_are_refused(order, layers, message):
    with pytest.raises(ValueError, match=message):
        choose_sublayers(order, "(sf)4", layers)


@torch.no_grad()
def test_a_student_of_some_sublayers_is_its_teacher_without_the_others(tmp_path):
    save_teacher(tmp_path, labels=3)
    teacher = open_teacher(str(tmp_path), CLASSIFIER)
    batch = teacher.tokenizer(TEXTS, padding=True, return_tensors="pt")
    student = keep_sublayers(teacher, ["s0", "f0", "f2"])
    assert student.start == "sff"
    with pytest.raises(ValueError, match=r"--sublayers s0 f0 f2 run in the order sf2, not s2f"):
        keep_sublayers(teacher, ["s0", "f0", "f2"], "s2f")
    assert keep_sublayers(teacher, ["s0", "f0", "f2"], "sf2").start == "sff"
    silence(teacher.model.base_model, {2, 3, 4})
    expected = teacher.model(**batch).logits
    torch.testing.assert_close(student.model(**batch).logits, expected, atol=1e-5, rtol=1e-5)


def test_sublayers_of_a_foreign_model_are_refused(tmp_path):
    _, tokenizer = save_teacher(tmp_path)
    other = DistilBertModel(DistilBertConfig(vocab_size=50, dim=16, hidden_dim=16, n_heads=2, n_layers=2))
    with pytest.raises(ValueError, match="mine has layers of its own; give what sublayers convert makes of it"):
        keep_sublayers(Teacher("mine", other, tokenizer), ["s0"])


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize(("order", "layers"), [("(sf)3", None), ("(sf)2", [0, 2])])
def test_in_its_own_order_a_student_is_its_teacher_without_the_layers_that_it_drops(order, layers, pooling, tmp_path):
    bert, tokenizer = save_teacher(tmp_path)
    teacher = open_teacher(str(tmp_path))
    student = make_student(teacher, order, layers, {"hidden_size": 16}, 32)
    if layers:
        del bert.encoder.layer[1]
    with torch.no_grad():
        states = [bert(**tokenizer(text, return_tensors="pt")).last_hidden_state[0] for text in TEXTS]
    expected = torch.stack([state.mean(0) if pooling == "mean" else state[0] for state in states])
    for model in (student.model,) if layers else (teacher.model, student.model):
        torch.testing.assert_close(ask(model, tokenizer, pooling), expected, rtol=1e-6, atol=2e-6)


RMS = {"norm_type": "rms", "norm_unit_offset": True, "gated_feed_forward": True, "mlp_bias": False}


@pytest.mark.parametrize("parts", [{}, RMS], ids=["papers", "today"])
@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_new_sublayers_start_as_identities(norm_position, parts):
    options = {"norm_position": norm_position, "final_norm": norm_position == "pre", "sublayer_order": "(sf)2"} | parts
    model = build("par_bert", AutoModel, **options)
    ids = torch.arange(4, 24).view(2, 10)
    student = make_student(Teacher("t", model, None, "mean"), "s2f5", None, {}, 32)
    assert student.start == "sfsffff"
    found = student.model.eval()
    found.base_model.layers.run_in(student.start)
    with torch.no_grad():
        torch.testing.assert_close(found(ids).last_hidden_state, model(ids).last_hidden_state, rtol=1e-5, atol=1e-5)
        assert not any(layer.mixer(torch.randn(2, 32))[0].any() for layer in found.base_model.layers[-3:])
        # but they can learn
        found.base_model.layers[-1].mixer.fc2.weight.normal_()
        assert not torch.allclose(found(ids).last_hidden_state, model(ids).last_hidden_state, atol=1e-2)


def test_a_student_of_other_sizes_or_of_another_architecture_is_random(tmp_path):
    _, tokenizer = save_teacher(tmp_path, labels=3)
    teacher = open_teacher(str(tmp_path), CLASSIFIER)
    student = make_student(teacher, "s2f3", None, {"hidden_size": 8}, 20)
    assert (student.start, ask(student.model, tokenizer, None).shape) == ("ssfff", (len(TEXTS), 3))
    config = student.model.config
    sizes = (config.hidden_size, config.intermediate_size, config.max_position_embeddings, config.pad_token_id)
    assert sizes == (8, 32, 20, tokenizer.pad_token_id)
    config = DistilBertConfig(vocab_size=len(tokenizer), dim=16, hidden_dim=24, n_heads=2, n_layers=1)
    DistilBertModel(config).save_pretrained(tmp_path / "other")
    tokenizer.save_pretrained(tmp_path / "other")
    teacher = open_teacher(str(tmp_path / "other"))
    assert ask(make_student(teacher, "sf", None, {}, 32).model, tokenizer).shape == (len(TEXTS), 16)
    with pytest.raises(ValueError, match=r"--layers cannot be taken from .*, whose distilbert is no BERT; leave"):
        make_student(teacher, "sf", [0], {}, 32)


def test_sublayers_that_depend_on_their_neighbours_are_not_moved():
    model = build("macaron_bert", AutoModel, pre_attention_act="relu", hidden_act="gelu", sublayer_order="fsf")
    teacher = Teacher("t", model, None, "mean")
    ids = torch.arange(4, 24).view(2, 10)
    with torch.no_grad():
        found = make_student(teacher, "fsf", None, {}, 32).model.eval()(ids).last_hidden_state
        torch.testing.assert_close(found, model(ids).last_hidden_state)
    with pytest.raises(ValueError, match="the activation 'relu', elsewhere 'gelu', so its sublayers run in no other"):
        make_student(teacher, "sff", None, {}, 32)


@pytest.mark.parametrize("sizes", [{}, {"hidden_size": 16}])
def test_without_dropout_a_student_that_learns_answers_as_one_that_does_not(sizes, tmp_path):
    save_teacher(tmp_path, labels=3)
    teacher = open_teacher(str(tmp_path), CLASSIFIER)
    student = make_student(teacher, "sfsf", None, sizes, 32).model
    batch = teacher.tokenizer(TEXTS, padding=True, return_tensors="pt")

    def differs():
        return not torch.equal(*(student.train(mode)(**batch).logits for mode in (True, False)))

    set_dropout(student, 0.3)
    assert differs()
    set_dropout(student, 0)
    assert not differs()
    rates = {name: rate for name, rate in student.config.to_dict().items() if name.endswith("dropout")}
    assert rates["dropout"] == rates["attention_dropout"] == 0
    assert not any(rates.values())

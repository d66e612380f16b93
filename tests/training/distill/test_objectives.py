import pytest
import torch
from datasets import Dataset
from families import build
from tiny_teachers import TEXTS, save_decoder, save_teacher
from transformers import (
    AutoTokenizer,
    BertForMaskedLM,
    BertForPreTraining,
    DistilBertConfig,
    DistilBertForMaskedLM,
    DistilBertModel,
    RobertaConfig,
    RobertaModel,
)

from sublayers.modeling.modeling_par_bert import PARBertForMaskedLM
from sublayers.training.data.corpus import Text
from sublayers.training.distill.answers import AnswerCollator
from sublayers.training.distill.objectives import NextTokens, Relations, States, Words
from sublayers.training.distill.student import keep_sublayers, make_student
from sublayers.training.distill.teacher import DECODER, WORDS, open_teacher
from sublayers.training.distill.texts import encode_texts, mask_words


def open_objective(kind, folder, order="(sf)3", sizes=None, **options):
    teacher = open_teacher(str(folder), kind.head)
    student = make_student(teacher, order, None, sizes or {}, 32).model.eval()
    return kind(teacher, student, **options)


def rows_of(objective, texts=TEXTS):
    rows = encode_texts(Text(Dataset.from_dict({"text": texts})), objective.teacher.tokenizer, 12, by_sentence=True)
    return objective.prepare(rows)


@torch.no_grad()
def batch_of(objective, rows, indices):
    """What the collator makes of some texts that the teacher was asked one by one."""
    found, collator = [], AnswerCollator(objective.teacher.tokenizer)
    for row in rows:
        ids = {name: torch.tensor([value]) for name, value in row.items()}
        found.append(objective.ask_teacher({**ids, "attention_mask": torch.ones_like(ids["input_ids"])}))
    counts = objective.count(rows)
    assert [len(each) for each in found] == counts.tolist()
    batch = collator([{**rows[i], "answers": found[i].numpy()} for i in indices])
    return batch, batch.pop("answers"), batch.pop("counts")


@pytest.mark.parametrize("order", ["(sf)3", "s3f3"])
def test_states_are_those_of_every_token(order, tmp_path):
    bert, tokenizer = save_teacher(tmp_path)
    objective = open_objective(States, tmp_path, order)
    rows, chosen = rows_of(objective), [3, 0, 40]
    batch, answers, counts = batch_of(objective, rows, chosen)
    asked = objective.ask(objective.student, batch)
    loss = objective.loss(asked, answers, {"counts": counts}).item()
    squares, cosines = [], []
    with torch.no_grad():
        for index in chosen:
            ids = tokenizer(TEXTS[index], truncation=True, max_length=12, return_tensors="pt")
            wanted, found = (model(**ids).last_hidden_state[0] for model in (bert, objective.student))
            squares += ((wanted - found) ** 2).mean(-1).tolist()
            cosines += torch.cosine_similarity(wanted, found, dim=-1).tolist()
    assert loss == pytest.approx(sum(squares) / len(squares), rel=1e-4, abs=1e-9)
    assert objective.score(asked, answers, batch).tolist() == pytest.approx(cosines, abs=1e-5)
    assert (loss < 1e-9) == (order == "(sf)3")


def test_states_of_another_width_are_mapped_while_the_student_learns(tmp_path):
    save_teacher(tmp_path)
    objective = open_objective(States, tmp_path, sizes={"hidden_size": 8})
    batch, answers, counts = batch_of(objective, rows_of(objective), [1, 2])
    found = objective.ask(objective.student, batch)
    states = objective.student(**batch).last_hidden_state[batch["attention_mask"].bool()]
    torch.testing.assert_close(found, objective.student.to_teacher(states))
    assert found.shape == answers.shape == (counts.sum(), 16)
    objective.loss(found, answers, {"counts": counts}).backward()
    assert objective.student.to_teacher.weight.grad.any()
    assert "a linear map that is not kept" in objective.reduces


def naive_relations(bert, ids, heads):
    """The relations in transformers' own queries, keys and values, from the states before the last layer."""
    states = bert(**ids, output_hidden_states=True).hidden_states[-2][0]
    attention = bert.encoder.layer[-1].attention.self
    found = []
    for projection in (attention.query, attention.key, attention.value):
        for head in projection(states).chunk(heads, -1):
            found += [torch.stack([(a @ b) / len(a) ** 0.5 for b in head]).softmax(0) for a in head]
    return torch.stack(found)


@pytest.mark.parametrize(("order", "sizes"), [("(sf)3", {}), ("(sf)2", {}), ("s2f", {"hidden_size": 8})])
def test_relations_are_those_of_the_last_attention(order, sizes, tmp_path):
    bert, tokenizer = save_teacher(tmp_path)
    objective = open_objective(Relations, tmp_path, order, sizes, relation_heads=4)
    # with padding, which our stack leaves out, without, and with too little to be left out
    for chosen in ([3, 0, 40], [1], [8, 17, 26, 7]):
        batch, answers, counts = batch_of(objective, rows_of(objective), chosen)
        loss = objective.loss(objective.ask(objective.student, batch), answers, {"counts": counts}).item()
        total, tokens = 0.0, 0
        with torch.no_grad():
            for index in chosen:
                ids = tokenizer(TEXTS[index], truncation=True, max_length=12, return_tensors="pt")
                wanted = naive_relations(bert, ids, 4)
                heads = objective.ask(objective.student, {**ids}).chunk(12, -1)
                found = torch.cat([torch.softmax(head @ head.T / head.shape[1] ** 0.5, -1) for head in heads])
                total += (wanted * (wanted.log() - found.log())).sum().item() / 4
                tokens += ids["input_ids"].shape[1]
        assert loss == pytest.approx(total / tokens, rel=1e-3, abs=1e-6)
        assert (loss < 1e-6) == (order == "(sf)3")


def test_relations_of_other_architectures_are_found(tmp_path):
    _, tokenizer = save_teacher(tmp_path)
    sizes = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    models = [
        DistilBertModel(DistilBertConfig(dim=16, hidden_dim=24, n_heads=2, n_layers=2, **sizes)),
        RobertaModel(RobertaConfig(hidden_size=16, num_attention_heads=2, num_hidden_layers=2, **sizes)),
    ]
    for model in models:
        model.save_pretrained(tmp_path)
        objective = open_objective(Relations, tmp_path, relation_heads=4)
        objective.teacher.tokenizer.model_input_names = ["input_ids", "attention_mask"]
        _, answers, counts = batch_of(objective, rows_of(objective), [3, 1])
        assert answers.shape == (counts.sum(), 3 * 16)
    with pytest.raises(ValueError, match="the student has no self-attention with maps to queries"):
        open_objective(Relations, tmp_path, "f2", relation_heads=4)


@pytest.mark.parametrize(
    ("sizes", "heads", "message"),
    [
        ({}, 12, "--relation_heads 12 do not divide the teacher's hidden size 16; give a divisor of both"),
        ({"hidden_size": 12}, 8, "--relation_heads 8 do not divide the student's hidden size 12"),
        ({}, 0, "--relation_heads 0 do not divide"),
    ],
)
def test_widths_that_relation_heads_do_not_divide_are_refused(sizes, heads, message, tmp_path):
    save_teacher(tmp_path)
    with pytest.raises(ValueError, match=message):
        open_objective(Relations, tmp_path, sizes=sizes, relation_heads=heads)


def test_a_share_of_the_words_is_masked_and_always_the_same(tmp_path):
    _, tokenizer = save_teacher(tmp_path)
    rows = encode_texts(Text(Dataset.from_dict({"text": [" ".join(TEXTS[:8]), "a"]})), tokenizer, 64, by_sentence=True)
    masked = mask_words(rows, tokenizer)
    for before, after in zip(rows["input_ids"], masked["input_ids"], strict=True):
        changed = [i for i, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]]
        assert {after[i] for i in changed} == {tokenizer.mask_token_id}
        assert len(changed) == max(1, round(0.15 * (len(before) - 2)))
        assert not {0, len(before) - 1} & {*changed}
    assert masked["input_ids"][:] == mask_words(rows, tokenizer)["input_ids"][:]
    # but not in the same places of all texts
    same = mask_words(Dataset.from_dict({"input_ids": [rows["input_ids"][0]] * 9}), tokenizer)
    assert len({tuple(ids) for ids in same["input_ids"]}) > 1


@pytest.mark.parametrize("model_class", [BertForMaskedLM, BertForPreTraining])
@pytest.mark.parametrize("order", ["(sf)3", "s3f3"])
def test_words_are_compared_where_they_are_masked(order, model_class, tmp_path):
    bert, _ = save_teacher(tmp_path, model_class=model_class)
    objective = open_objective(Words, tmp_path, order, temperature=2.0)
    rows, chosen = rows_of(objective), [3, 0, 40]
    batch, answers, counts = batch_of(objective, rows, chosen)
    # states, not scores
    assert answers.shape == (counts.sum(), 16)
    found, wanted = objective.ask(objective.student, batch), objective.read(answers)
    assert not wanted.requires_grad
    loss = objective.loss(found, wanted, batch).item()
    total, masked, same = 0.0, 0, []
    with torch.no_grad():
        for index in chosen:
            ids = torch.tensor([rows[index]["input_ids"]])
            scores = bert(ids)["logits" if model_class is BertForMaskedLM else "prediction_logits"][0]
            for place in (ids[0] == objective.mask).nonzero()[:, 0]:
                p, q = (each[place].div(2).softmax(-1) for each in (scores, objective.student(ids).logits[0]))
                total, masked = total + (p * (p.log() - q.log())).sum().item(), masked + 1
                same.append(float(p.argmax() == q.argmax()))
    assert loss == pytest.approx(4 * total / masked, rel=1e-3, abs=1e-6)
    assert objective.score(found, wanted, batch).tolist() == same
    assert (loss < 1e-6) == (order == "(sf)3")


def test_masked_words_alone_run_behind_the_last_attention(tmp_path):
    save_teacher(tmp_path, model_class=BertForMaskedLM)
    objective, ran = open_objective(Words, tmp_path, "s3f3"), []
    for model in (objective.student, objective.teacher.model):
        model.base_model.layers[-1].register_forward_hook(lambda _, args, out: ran.append(out[..., 0].numel()))
    batch, _, counts = batch_of(objective, rows_of(objective), [*range(9)])
    ran.clear()
    objective.ask(objective.student, batch)
    objective.ask_teacher(batch)
    assert ran == 2 * [counts.sum()]


def test_what_teaches_no_words_is_refused(tmp_path):
    _, tokenizer = save_teacher(tmp_path)
    with pytest.raises(ValueError, match="is no masked language model but BertModel; choose another --objective"):
        open_teacher(str(tmp_path), WORDS)
    config = DistilBertConfig(vocab_size=len(tokenizer), dim=16, hidden_dim=24, n_heads=2, n_layers=1)
    DistilBertForMaskedLM(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="is no BERT; choose another teacher or --objective"):
        open_objective(Words, tmp_path, "sf")
    save_teacher(tmp_path, model_class=BertForMaskedLM)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.mask_token = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="has no mask_token; give one of BERT's kind"):
        open_objective(Words, tmp_path)


def test_a_model_of_ours_teaches_words(tmp_path):
    save_teacher(tmp_path / "bert", model_class=BertForMaskedLM)
    teacher = open_teacher(str(tmp_path / "bert"), WORDS)
    assert type(teacher.model) is PARBertForMaskedLM
    teacher.model.save_pretrained(tmp_path / "ours")
    teacher.tokenizer.save_pretrained(tmp_path / "ours")
    pair = [open_objective(Words, tmp_path / name) for name in ("bert", "ours")]
    (_, one, _), (_, other, _) = (batch_of(each, rows_of(each), [5, 2]) for each in pair)
    torch.testing.assert_close(one, other)


@pytest.mark.parametrize(("pad_token", "side"), [("<|pad|>", "left"), (None, "right")])
def test_next_tokens_are_those_of_the_text_and_of_the_teacher(pad_token, side, tmp_path):
    llama, tokenizer = save_decoder(tmp_path)
    tokenizer.pad_token = pad_token
    tokenizer.save_pretrained(tmp_path)
    teacher = open_teacher(str(tmp_path), DECODER)
    teacher.tokenizer.padding_side = side
    objective = NextTokens(teacher, keep_sublayers(teacher, ["s0", "f0", "f1"]).model, temperature=2.0)
    rows = objective.encode(Text(Dataset.from_dict({"text": TEXTS})), 12, whole_rows=False)
    # windows share one token, so that each is predicted once; the last one is shorter, and in the batch
    ids = [token for text in TEXTS for token in [tokenizer.eos_token_id, *tokenizer(text).input_ids]]
    assert ids[:1] + [token for row in rows["input_ids"] for token in row[1:]] == ids
    assert len(rows[len(rows) - 1]["input_ids"]) < 12
    batch, answers, counts = batch_of(objective, rows, [0, 3, len(rows) - 1])
    # states, not scores
    assert answers.shape == (counts.sum(), 16)
    found, wanted = objective.ask(objective.student, batch), objective.read(answers)
    losses, divergence = [], 0.0
    with torch.no_grad():
        for index in (0, 3, len(rows) - 1):
            ids = torch.tensor([rows[index]["input_ids"]])
            scores, own = (model(ids).logits[0] for model in (llama, objective.student))
            for place, token in enumerate(ids[0, 1:]):
                losses.append(-own[place].softmax(-1)[token].log().item())
                p, q = (each[place].div(2).softmax(-1) for each in (scores, own))
                divergence += 4 * (p * (p.log() - q.log())).sum().item()
    torch.testing.assert_close(objective.score(found, wanted, batch), torch.tensor(losses), atol=1e-4, rtol=1e-4)
    expected = (sum(losses) + divergence) / len(losses)
    assert objective.loss(found, wanted, batch).item() == pytest.approx(expected, rel=1e-4)


def test_a_model_with_memory_teaches_no_next_tokens(tmp_path):
    save_decoder(tmp_path)
    teacher = open_teacher(str(tmp_path), DECODER)
    with pytest.raises(ValueError, match="par_transformer_xl has a memory; give a language model without one"):
        NextTokens(teacher, build("par_transformer_xl"))

"""What holds for every family and each of its heads, whatever the order of its sublayers."""

import pytest
import torch
from common import VOCAB, assert_same, backward, every_backend, tokens
from families import (
    BERTS,
    FAMILIES,
    LMS,
    ROWS,
    every_row,
    inputs,
    labelled,
    padded,
    real_of,
    tensors,
    texts,
    unlabelled,
)
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    DynamicCache,
    EncoderDecoderCache,
    PreTrainedModel,
)

from sublayers.modeling.plan import Plan
from sublayers.modeling.stack import SublayerStack


def heads(row):
    """All but the body."""
    return [head for head in row.heads if head is not AutoModel]


def stacks(model) -> list[SublayerStack]:
    return [module for module in model.modules() if isinstance(module, SublayerStack)]


@every_row(siblings=True)
def test_saves_and_loads_bit_exactly_through_the_auto_classes(row, tmp_path):
    for head, model_class in row.heads.items():
        for orders in row.some_orders:
            model = row.build(head, *orders)
            folder = tmp_path / "-".join([model_class.__name__, *orders])
            model.save_pretrained(folder)
            loaded, report = head.from_pretrained(folder, output_loading_info=True)
            assert type(loaded) is model_class
            assert not any(report.values()), report
            assert_same(dict(loaded.named_parameters()), dict(model.named_parameters()), rtol=0, atol=0)
            assert AutoConfig.from_pretrained(folder).to_dict() == loaded.config.to_dict()
            body = AutoModel.from_pretrained(folder)
            # grouped products depend on where in memory weights lie
            atol = 1e-5 if "num_experts" in row.options else 0
            for (one, other), batch in zip(
                [(loaded, model), (body, model.base_model)], [padded(model, head), padded(model)], strict=True
            ):
                torch.testing.assert_close(one(**batch)[0], other(**batch)[0], atol=atol, rtol=atol)


@every_row()
def test_a_keyword_that_nobody_reads_is_refused(row):
    for head in row.heads:
        model = row.build(head)
        with pytest.raises(TypeError, match=f"{type(model).__name__}.* unexpected keyword argument 'tomorrow'"):
            model(**padded(model, head), tomorrow=None)
        for part in model.modules():
            if isinstance(part, PreTrainedModel):
                with pytest.raises(TypeError, match=r"forward\(\) got an unexpected keyword argument 'tomorrow'"):
                    part(tomorrow=1)


def test_slices_of_a_stack_are_lists_of_its_sublayers():
    for stack in stacks(ROWS["sandwich_seq2seq"].build()):
        for chosen in (slice(2), slice(1, None), slice(None, None, -2)):
            assert type(stack[chosen]) is nn.ModuleList
            assert [*stack[chosen]] == [*stack][chosen]
        stack[:2].requires_grad_(False)
        frozen = [not any(p.requires_grad for p in layer.parameters()) for layer in stack]
        assert frozen == [i < 2 for i in range(len(stack))]


@every_row()
def test_runs_partly_from_disk_with_a_device_map(row, tmp_path):
    model = row.build()
    model.save_pretrained(tmp_path / "model")
    sides = [(f"{side}.", part) for side, part in model.named_children()] if len(stacks(model)) > 1 else [("", model)]
    places = {}
    for side, part in sides:
        places |= {f"{side}{name}": "cpu" for name, _ in part.named_children() if name != "layers"}
        places |= {f"{side}layers.{i}": "disk" if i % 2 else "cpu" for i in range(len(part.layers))}
    loaded = AutoModel.from_pretrained(tmp_path / "model", device_map=places, offload_folder=tmp_path / "offload")
    torch.testing.assert_close(loaded(**inputs(model))[0], model(**inputs(model))[0])


@every_row(heads=lambda row: row.heads)
@torch.no_grad()
def test_padding_changes_no_output(row, head):
    for orders in row.all_orders if head is row.main_head else row.some_orders:
        # how 32 bits round depends on the number of rows and on the machine
        model = row.build(head, *orders).double()
        batch = unlabelled(labelled(model, head))
        together, alone = model(**batch), [model(**text) for text in texts(batch)]
        for name, found in tensors(together, batch).items():
            wanted = torch.cat([out[name].flatten() for out in alone]).view_as(found)
            torch.testing.assert_close(found, wanted, atol=1e-9, rtol=1e-8, msg=lambda m, n=name: f"{n}: {m}")
        if head is AutoModelForQuestionAnswering:
            for logits in (together.start_logits, together.end_logits):
                assert (logits[~real_of(batch)] == torch.finfo(logits.dtype).min).all()


@every_row()
@every_backend
@torch.no_grad()
def test_attention_backends_agree(row, backend):
    def run(model):
        batch = padded(model)
        found = [model(**batch)[0][real_of(batch)]]
        if model.config.is_encoder_decoder:
            # two candidates for each source
            sources = {"encoder_outputs": model.get_encoder()(batch["input_ids"], batch["attention_mask"])}
            sources["attention_mask"] = batch["attention_mask"]
            return [*found, model(**sources, decoder_input_ids=tokens(6, 4))[0]]
        plan = Plan.of(batch["input_ids"], batch["attention_mask"], torch.tensor([[3, 8], [4, 7], [0, 5]]))
        found.append(plan.select(model(**batch, plan=plan)[0]))
        if hasattr(model, "empty_memory"):
            out = model(tokens(2, 20)[:, :7], memory=model.empty_memory(2))
            found.append(model(tokens(2, 20)[:, 7:], memory=out.memory)[0])
        return found

    for orders in row.orders:
        model = row.build(AutoModel, *orders)
        expected = run(model)
        model.set_attn_implementation(backend)
        if "relative_key_distance" in row.options and backend not in ("eager", "sdpa"):
            with pytest.raises(ValueError, match=f"'{backend}' knows no keys of distances"):
                run(model)
            continue
        with torch.compiler.set_stance("force_eager"):
            torch.testing.assert_close(run(model), expected, atol=1e-5, rtol=1e-5)


@every_row(heads=heads)
def test_recording_states_and_weights_changes_no_result_and_no_gradient(row, head):
    asked = {"output_hidden_states": True, "output_attentions": True}
    for orders in row.some_orders:
        model = row.build(head, *orders, attn_implementation="eager")
        batch = labelled(model, head)
        found, out = model(**batch), model(**batch, **asked)
        torch.testing.assert_close(tensors(out, batch), tensors(found, batch), atol=1e-5, rtol=1e-4, equal_nan=True)
        model.train()
        losses = []
        for options in ({}, asked):
            # orders of a batch are drawn
            torch.manual_seed(0)
            losses.append(backward(model, model(**batch, **options).loss))
        assert_same(*losses, atol=1e-4, rtol=1e-3)
        prefixes = ("encoder_", "decoder_") if model.config.is_encoder_decoder else ("",)
        for prefix, stack in zip(prefixes, stacks(model), strict=True):
            real = batch["decoder_attention_mask" if prefix == "decoder_" else "attention_mask"].flatten(0, -2).bool()
            assert [*{states.shape[:2] for states in out[f"{prefix}hidden_states"]}] == [real.shape]
            assert len(out[f"{prefix}hidden_states"]) == len(stack.order) + 1
            weights = [*out[f"{prefix}attentions"], *(out.cross_attentions if prefix == "decoder_" else ())]
            assert len(weights) == sum(map(stack.order.letters.count, "swmc"))
            for each in weights:
                shares = each.sum(-1).transpose(1, 2)[real]
                torch.testing.assert_close(shares, torch.ones_like(shares))


@every_row()
def test_checkpoints_change_no_gradient_and_leave_a_cache_alone(row):
    for orders in row.some_orders:
        model = row.main(*orders).train()
        batch, runs, found = labelled(model, row.main_head), [], []
        for stack in stacks(model):
            stack[-1].mixer.register_forward_pre_hook(lambda *_, runs=runs: runs.append(1))
        for reentrant in (None, False, True):
            if reentrant is not None:
                model.gradient_checkpointing_enable({"use_reentrant": reentrant})
            runs.clear()
            torch.manual_seed(0)
            found.append((backward(model, model(**batch).loss), len(runs)))
        for others, number in found[1:]:
            assert_same(others, found[0][0], atol=1e-5, rtol=1e-4)
            assert number == 2 * found[0][1], "the backward pass did not run the sublayers again"
        if row.family not in BERTS:
            cache = DynamicCache(config=model.config)
            cache = EncoderDecoderCache(cache, DynamicCache()) if model.config.is_encoder_decoder else cache
            model.base_model(**padded(model), cache=cache)[0].sum().backward()
            assert cache.get_seq_length() == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_says_in_one_sentence_what_is_wrong_with_an_input(family):
    two, long = {"input_ids": tokens(2, 3)}, {"input_ids": tokens(1, 65)}
    range_of = f"input_ids must lie between 0 and {VOCAB - 1}, got 5 to {VOCAB}"
    outside, places = torch.tensor([[5, VOCAB]]), torch.tensor([[62, 63, 64]])
    for head in ROWS[family].heads:
        model = ROWS[family].build(head)
        wrong = [("exactly one of", {})]
        if head is AutoModel or model.config.is_encoder_decoder:
            embeds = {"inputs_embeds": model.get_input_embeddings()(tokens(2, 3))}
            wrong += [(f"^{range_of}", {"input_ids": outside}), ("exactly one of", two | embeds)]
        if wrong[1:] and family not in LMS[1:]:
            wrong.append(("65 tokens does not fit into max_position_embeddings=64; shorten", long))
        if model.config.is_encoder_decoder:
            wrong = [(message, {"decoder_input_ids": tokens(2, 3)} | batch) for message, batch in wrong]
            encoded = {"encoder_outputs": model.base_model.encoder(tokens(2, 3))}
            wrong += [
                (f"^decoder_{range_of}", two | {"decoder_input_ids": outside.expand(2, 2)}),
                ("65 tokens does not fit into max_position_embeddings=64", two | {"decoder_input_ids": tokens(2, 65)}),
                (
                    "exactly one of",
                    two | {"decoder_input_ids": tokens(2, 3), "decoder_inputs_embeds": embeds["inputs_embeds"]},
                ),
                ("3 target rows cannot share 2 source rows", encoded | {"decoder_input_ids": tokens(3, 3)}),
                (
                    "decoder_position_ids must lie",
                    two | {"decoder_input_ids": tokens(2, 3), "decoder_position_ids": places},
                ),
            ]
            if head is not AutoModelForSequenceClassification:
                # and not that the source is missing
                wrong.append(("decoder_input_ids", two))
        elif wrong[3:]:
            wrong.append(("position_ids must lie between 0 and 63", two | {"position_ids": places}))
        for message, batch in wrong:
            with pytest.raises(ValueError, match=message):
                model(**batch)

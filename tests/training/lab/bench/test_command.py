"""A tiny run of every bench, and what all of them have in common."""

import json
import shlex
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from importlib.util import find_spec
from io import StringIO
from itertools import product
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pytest
import torch

from sublayers.configuration.sublayer_cost import cache_bytes, memory_bytes
from sublayers.training import cli
from sublayers.training.lab.bench import command as bench, lm, recurrent_lm
from sublayers.training.metrics import timing
from sublayers.training.results import read

TINY = "--hidden_size=16 --heads=2 --vocab_size=50 --device=cpu --threads=1"
LM = f"lm {TINY} --layers=2 --batch_size=2 --length=12 --prompt_length=4 --new_tokens=3 --repeats=3"
MEMORY = f"lm --memory {TINY} --layers=5 --batch_size=2 --length=6 --memory_length=12 --clamp_length=8 --train_length=7"
MEMORY += " --prompt_length=9 --new_tokens=3 --repeats=1 --score_batch_sizes 1 2"
BERT = f"bert {TINY} --repeats=2"
SEQ2SEQ = f"seq2seq {TINY} --layers=2 --new_tokens=3 --repeats=1 --shapes 2x6 mixed"
IOT = f"iot {TINY} --layers=1 --new_tokens=3 --repeats=1 --shapes 4x6"
SPANS = "spans --hidden_size=16 --heads=2 --batch_size=2 --length=24 --device=cpu --repeats=1 --spans 64 128 256"
SUPERNET = "supernet --hidden_size=16 --heads=2 --vocab_size=40 --batch_size=2 --length=8 --layers=2 --repeats=1"

LM_TASKS = ["train step", "forward", "prefill", "decode 1x3", "decode 8x3"]
MEMORY_TASKS = ["train step 2x7 after 7", "train step 2x6 after 12"]
MEMORY_TASKS += [f"score with {what} {rows}x6" for rows in (1, 2) for what in ("memory", "cache")]
MEMORY_TASKS += ["decode 1x3 after 9"]
BERT_TASKS = ["classification", "token classification", "question answering", "fine-tuning step", "MLM training step"]
SEQ2SEQ_TASKS = [f"training step {shape}" for shape in ("2x6", "mixed")]
for shape in ("2x6", "mixed"):
    SEQ2SEQ_TASKS += [f"encoder {shape}", f"greedy {shape}, 3 tokens", f"beam 5 {shape}, 3 tokens"]
ALL = ["BART", "Marian", "x-transformers"]
needs_peer = pytest.mark.skipif(find_spec("x_transformers") is None, reason="x-transformers is not installed")


class Case(NamedTuple):
    """A command line, the names of its tasks, the peers of each model, and what is printed."""

    words: str
    tasks: list[str]
    peers: dict[str, list[str]]
    printed: tuple[str, ...]


def beside(peer: str, *orders: str) -> dict[str, list[str]]:
    """Our models beside one peer."""
    return {peer: [], **{f"sublayers {order}": [peer] for order in orders}}


CASES = {
    "lm": Case(
        LM,
        LM_TASKS,
        {
            "GPT-2": [],
            **{f"sublayers {order}": ["GPT-2", f"x-transformers {order}"] for order in ("(sf)2", "s2f2")},
            **{f"x-transformers {order}": ["GPT-2"] for order in ("(sf)2", "s2f2")},
        },
        ("Ratios are to GPT-2 and to x-transformers in the same order",),
    ),
    "lm alone": Case(
        LM,
        LM_TASKS,
        beside("GPT-2", "(sf)2", "s2f2"),
        (
            'pip install "sublayers[bench]"',
            "decode 8x3, GB/s",
            "prefill, peak MiB",
            "threads 1",
            "torch ",
            "layers 2",
            "memory kept",
        ),
    ),
    "lm in half precision alone": Case(
        f"{LM} --orders 's f3' --dtype=bfloat16 --no_onednn --release_memory --processor_time",
        LM_TASKS,
        beside("GPT-2", "sf3"),
        ("dtype bfloat16", "memory as the allocator has it", "forward, system ms", "decode 8x3, page faults"),
    ),
    **{
        peer: Case(
            f"{LM} --peer={peer} --orders (sf)2 sfwf rfge --attention_window=4 --recurrence=gated_delta",
            LM_TASKS,
            beside(name, "(sf)2", "sfwf", "rfge"),
            (f"Ratios are to transformers' {name}",),
        )
        for peer, name in (("llama", "Llama"), ("qwen3", "Qwen3"))
    },
    **{
        f"{peer} in its own order": Case(
            f"{LM.replace('--layers=2', '--layers=4')} --peer={peer}",
            LM_TASKS,
            beside(name, order),
            (f"Ratios are to transformers' {name}",),
        )
        for peer, name, order in (
            ("lfm2", "LFM2", "(gf)2sfgf"),
            ("mixtral", "Mixtral", "(se)4"),
            ("nemotron_h", "Nemotron-H", "(rf)3sf"),
        )
    },
    "memory": Case(
        MEMORY,
        MEMORY_TASKS,
        {
            "sublayers (sf)5": ["x-transformers (sf)5"],
            "sublayers (sff)2f4": ["sublayers (sf)5", "x-transformers (sff)2f4"],
            **{f"x-transformers {order}": [] for order in ("(sf)5", "(sff)2f4")},
        },
        ("Ratios are to the first order and to x-transformers",),
    ),
    "memory alone": Case(
        MEMORY, MEMORY_TASKS, beside("sublayers (sf)5", "(sff)2f4"), ('pip install "sublayers[bench]"',)
    ),
    "bert": Case(
        f"{BERT} --layers=2 --orders (sf)2 's f3' --shapes 2x6 mixed",
        [" ".join(each) for each in product(BERT_TASKS, ("2x6", "mixed"))],
        {"BERT": [], "DistilBERT": [], **{f"sublayers {each}": ["BERT", "DistilBERT"] for each in ("(sf)2", "sf3")}},
        ("classification 2x6, peak MiB", "layers 2"),
    ),
    "modernbert": Case(
        f"{BERT} --layers=3 --peer=modernbert --shapes=2x6 --tasks classification 'MLM training step'",
        ["classification 2x6", "MLM training step 2x6"],
        beside("ModernBERT", "s(fw)2f", "sw2f3", "sf5", "sf"),
        (),
    ),
    "seq2seq": Case(
        f"{SEQ2SEQ} --orders (sf)2:(scf)2 ssff:(sc)2f2",
        SEQ2SEQ_TASKS,
        {"BART": [], "Marian": [], "sublayers (sf)2:(scf)2": ALL, "sublayers s2f2:(sc)2f2": ALL, "x-transformers": []},
        ("beam 5 mixed, 3 tokens, GB/s", "training step 2x6, peak MiB", "layers 2"),
    ),
    "iot": Case(
        f"{IOT} --orders 'interleaved(1):s c f,fcs' sf,fs:interleaved(1,decoder=True)",
        ["training step 4x6", "encoder 4x6", "greedy 4x6, 3 tokens", "beam 5 4x6, 3 tokens"],
        {"Transformer": [], "sf:scf,fcs": ["Transformer"], "sf,fs:scf": ["Transformer"]},
        ("beam 5 4x6, 3 tokens, ms",),
    ),
    "spans": Case(
        f"{SPANS} --orders s sf",
        ["train step", "forward"],
        {f"{order} {span}": [f"{order} 256"] * (span < 256) for order in ("s", "sf") for span in (64, 128, 256)},
        ("forward, ms",),
    ),
    "supernet": Case(
        f"{SUPERNET} --orders (sf)2 s2f3",
        ["train step", "architecture step"],
        {"(sf)2": [], "supernet of 4": ["(sf)2"], "s2f3": [], "supernet of 5": ["s2f3"]},
        ("Ratios are to the plain model",),
    ),
}
MARKS = {name: [needs_peer] for name in ("lm", "memory")}
MARKS |= {"bert": [pytest.mark.slow], "modernbert": [pytest.mark.slow]}
MARKS |= {"seq2seq": [pytest.mark.slow, pytest.mark.full, needs_peer]}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Run a case once, and return its command line, all numbers, the rows of figures and what it prints."""

    @cache
    def run(name):
        files = [tmp_path_factory.mktemp("bench") / f"bench.{form}" for form in ("json", "csv")]
        words = [*shlex.split(CASES[name].words), f"--json={files[0]}", f"--csv={files[1]}"]
        flags = torch.backends.mkldnn.set_flags()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as out:
            patch.setenv("COLUMNS", "250")
            # a busy machine is told elsewhere
            patch.setattr(timing, "disagreement", lambda times: "")
            if name.endswith("alone"):
                patch.setitem(sys.modules, "x_transformers", None)
            with redirect_stderr(StringIO()) as errors, warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                cli.run(["bench", *words])
        assert errors.getvalue() == ""
        assert name != "lm alone" or not warned
        assert torch.backends.mkldnn.enabled != ("--no_onednn" in words)
        torch.backends.mkldnn.set_flags(flags[0])
        return words, json.loads(files[0].read_text()), read(files[1]), out.getvalue()

    return run


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in CASES])
def test_compares_every_model_in_every_task_with_its_peers(name, finished):
    _, tasks, peers, printed = CASES[name]
    words, everything, rows, output = finished(name)
    assert [*everything["tasks"]] == tasks
    for task, result in everything["tasks"].items():
        samples = {model: measured["samples_ms"] for model, measured in result["models"].items()}
        # x-transformers has no cache behind a memory, and no beams
        lacks = "cache" in task or "beam" in task
        assert [*samples] == [model for model in peers if not (lacks and model.startswith("x-transformers"))]
        for model, measured in result["models"].items():
            own = samples[model]
            assert len(own) == everything["settings"]["repeats"]
            assert measured["median_ms"] == median(own) > 0
            # within a round
            ratios = {
                peer: median(a / b for a, b in zip(own, samples[peer], strict=True))
                for peer in peers[model]
                if peer in samples
            }
            assert [*measured["ratios"].items()] == [*ratios.items()]
            assert min(measured["rate"], measured["peak_bytes"]) > 0
            [row] = [row for row in rows if row["model"] == model]
            # a document has commas between the columns that it names
            title = task.replace(",", "")
            assert row[f"{title} (ms)"] == f"{measured['median_ms']:.1f}"
            assert row[f"{title} peak memory (MiB)"] == f"{measured['peak_bytes'] / 2**20:.1f}"
            shown = {each: value for each, value in row.items() if value and each.startswith(f"{title} (ms) ratio to ")}
            assert shown == {f"{title} (ms) ratio to {peer}": f"{ratio:.2f}" for peer, ratio in ratios.items()}
            assert [*measured["spent"]] == ["user ms", "system ms", "page faults"]
            assert {kind: row[f"{kind} of {title}"] for kind in measured["spent"]} == {
                kind: f"{value:.1f}" for kind, value in measured["spent"].items()
            }
    assert [row["model"] for row in rows] == [*peers]
    for row in rows:
        # what has no order is another's
        assert row["order"] == next(
            (each for each in everything["settings"]["orders"] if each in row["model"].split()), ""
        )
        # files are told without their folders
        told = [word.replace(f"{Path(word.partition('=')[2]).parent}/", "") for word in words]
        assert row["command"] == shlex.join(["sublayers", "bench", *told])
        for label, values in everything["totals"].items():
            assert row[label] == str(values[row["model"]])
    assert all(text in output for text in printed)
    assert output.count("pip install") == name.endswith("alone")


def test_totals_are_those_of_the_sizes(finished):
    def totals(name):
        return [*finished(name)[1]["totals"].values()]

    # keys and values, attention sublayers, batch, length, hidden size, bytes of a number
    assert {*totals("lm alone")[1].values()} == {2 * 2 * 2 * 12 * 16 * 4}
    gpt2, ours = totals("lm in half precision alone")[1].values()
    assert gpt2 == 2 * ours == 2 * cache_bytes("(sf)2", 16, 12)
    for name in ("lm alone", "llama", "qwen3"):
        # the same parts
        assert len({count for model, count in totals(name)[0].items() if model != "sublayers rfge"}) == 1
    assert totals("memory alone")[1] == {
        f"sublayers {order}": memory_bytes(order, 16, 12, bytes_per_number=4) for order in ("(sf)5", "(sff)2f4")
    }
    transformer, *choosers = totals("iot")[0].values()
    assert choosers == [transformer + 2 * 16] * 2
    # rows, width and bytes of a number; of a span that may grow, a step more is kept
    assert [*totals("spans")[0].values()] == [2 * 16 * 4 * tokens for tokens in (128, 192, 256)] * 2
    # both candidates of four layers
    plain, supernet = (totals("supernet")[0][name] - (40 * 16 + 2 * 16) for name in ("(sf)2", "supernet of 4"))
    assert supernet == 2 * plain


@needs_peer
@pytest.mark.full
def test_totals_of_peers_are_those_of_ours(finished):
    assert len({*[*finished("lm")[1]["totals"].values()][1].values()}) == 1
    remembered = finished("memory")[1]["totals"]["memory of 12 tokens (bytes)"]
    assert remembered == {name: memory_bytes(name.split()[1], 16, 12, bytes_per_number=4) for name in remembered}


@pytest.mark.slow
def test_bert_has_the_parameters_of_its_order(finished):
    parameters = finished("bert")[1]["totals"]["parameters"]
    assert parameters["BERT"] == parameters["sublayers (sf)2"]


@pytest.mark.parametrize("form", ["json", "csv"])
def test_a_file_is_never_overwritten(tmp_path, form):
    path = tmp_path / f"bench.{form}"
    path.write_text("mine")
    with pytest.raises(FileExistsError, match="choose another file"):
        bench.main([*LM.split(), f"--{form}={path}"])
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (f"{LM} --orders sfq", "not a sublayer"),
        (f"{LM} --repeats=0", "0 is not a positive number"),
        ("ml", "there is no bench 'ml'; choose from lm, bert"),
        (f"{SPANS} --spans 31", "--spans 31 is shorter than the ramp at its end; give 32 or more"),
        *((f"{BERT} --shapes {shape}", f"'{shape}' is no shape; give rows") for shape in ("8", "0x9", "8x", "axb")),
        (f"{SEQ2SEQ} --shapes 8x", "'8x' is no shape"),
    ],
)
def test_bad_input_is_one_sentence(words, message):
    with pytest.raises(ValueError, match=message):
        bench.main(words.split())


def test_flags_have_other_defaults_with_memory():
    (module, plain), (other, recurrent) = bench.parse(["lm"]), bench.parse(["lm", "--memory", "--length=9"])
    assert (module, other) == (lm, recurrent_lm)
    assert (plain.vocab_size, plain.length, plain.decode_batch_sizes) == (50_257, 256, [1, 8])
    assert (recurrent.vocab_size, recurrent.length) == (10_000, 9)
    assert (recurrent.memory_length, recurrent.decode_batch_sizes) == (640, [1])

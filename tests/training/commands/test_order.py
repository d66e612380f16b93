import io
import json
import re

import pytest
import torch
from rich.console import Console

from sublayers import SandwichLMConfig, SandwichLMModel
from sublayers.configuration.alphabet import ALPHABET
from sublayers.configuration.order import expand, interleaved
from sublayers.configuration.sublayer_cost import cache_bytes, flops, memory_bytes, parameters
from sublayers.training import cli
from sublayers.training.commands.order import main
from sublayers.training.metrics.order_decision import Read, sentences, table
from sublayers.training.results import read


@pytest.fixture(autouse=True)
def wide_and_plain(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def costs(capsys):
    """What the command prints as JSON."""

    def find(*argv):
        cli.main(["order", *argv, "--json"])
        return json.loads(capsys.readouterr().out)

    return find


def row(text, label):
    """Return the cells of the table's row with this label."""
    line = next(line for line in text.splitlines() if line.startswith(f"│ {label}"))
    return [cell.strip() for cell in line.strip("│").split("│")][1:]


def test_drawing_shows_every_letter_without_colours(capsys):
    main(["s2(scf)2dl"])
    name, boxes = capsys.readouterr().out.splitlines()[:2]
    assert name == "s2(scf)2dl"
    assert boxes.split() == list("ssscfscfdl")


def test_drawing_has_a_colour_for_each_kind_and_wraps_at_the_width(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "41")
    main(["s11f11"])
    rows = capsys.readouterr().out.splitlines()[1:4]
    assert [re.sub(" ", "", row) for row in rows] == ["s" * 10, "s" + "f" * 9, "ff"]
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    main(["scfdl"])
    boxes = re.findall(r"\x1b\[([0-9;]+)m ([scfdl]) \x1b", capsys.readouterr().out)
    assert [letter for _, letter in boxes] == list("scfdl")
    assert len({style for style, _ in boxes}) == 5


def test_it_is_decided_by_what_is_read(monkeypatch):
    monkeypatch.setattr("sublayers.training.metrics.order_decision.WORTH_IT", 0.9)
    plain = {"sf": 10.0, "(sf)2": 20.0, "(sf)3": 30.0}
    times = {
        128: {
            "one position": alike({"(sf)3": 30.0, "s3f3": 21.0}, plain),
            "every position": alike({"(sf)3": 30.0, "s3f3": 28.0}, plain),
            "the next token": alike({"(sf)3": 30.0, "s3f3": 9.0}, plain),
        }
    }
    assert [*sentences(["(sf)3", "s3f3"], times)] == [
        "one position of 128: s3f3 takes 0.70 of (sf)3, as long as the plain (sf)2.",
        "every position of 128: nothing here is faster than (sf)3, so take that one.",
        "the next token of 128: s3f3 takes 0.30 of (sf)3, less than any plain Transformer.",
    ]
    assert [*sentences(["(sf)3", "(sf)2"], times)] == []
    assert [*sentences(["(sf)3", "f3"], {8: {"one position": alike({"(sf)3": 3.0, "f3": 1.0}, {"sf": 1.0})}})] == [
        "one position of 8: f3 takes 0.33 of (sf)3, as long as the plain sf."
    ]


def alike(times, plain):
    """What is read: each order takes as long in all rounds."""
    return Read({order: [time] * 3 for order, time in times.items()}, times | plain)


def test_nothing_is_decided_where_rounds_disagree():
    rounds = {"(sf)3": [30.0, 60.0, 30.0], "s3f3": [16.5, 24.0, 27.0], "f3": [15.0, 33.0, 15.0]}
    medians = {"(sf)3": 30.0, "s3f3": 24.0, "f3": 15.0, "sf": 12.0}
    times = {128: {"one position": Read(rounds, medians)}}
    assert [*sentences(["(sf)3", "f3", "s3f3"], times)] == [
        "one position of 128: rounds disagree, s3f3 takes 0.40 to 0.90 of (sf)3; measure it again."
    ]
    assert [*sentences(["(sf)3", "f3"], times)] == [
        "one position of 128: f3 takes 0.50 of (sf)3, as long as the plain sf."
    ]
    console = Console(width=200, file=io.StringIO())
    console.print(table(["(sf)3", "s3f3", "f3"], times))
    assert "24.0 (0.40 to 0.90, sf)" in console.file.getvalue()
    assert "15.0 (0.50, sf)" in console.file.getvalue()


def test_decisions_are_measured(capsys, costs, tmp_path):
    sizes = ["--hidden_size", "8", "--heads", "2", "--lengths", "6", "--attention_window", "3", "--rows", "2"]
    measured = costs("(sf)2", "sfwf", "sfmf", *sizes, "--tail_query", "mean", "--decide")["6"]
    assert [*measured] == ["one position", "15 % of the positions", "every position", "the next token"]
    for times in measured.values():
        assert {*times} == {"(sf)2", "sfwf", "sfmf", "sf"}
        assert all(time > 0 for time in times.values())
    figures, picture = tmp_path / "decided.csv", tmp_path / "decided.svg"
    main(["(sf)2", "sfwf", *sizes, "--rotary", "--decide", "--csv", str(figures), "--picture", str(picture)])
    assert len(re.findall("of 6: ", capsys.readouterr().out)) == 4
    plain, local = read(figures)
    assert (plain["order"], local["order"]) == ("(sf)2", "sfwf")
    assert float(local["the next token of 6 (ms) ratio to (sf)2"]) > 0
    assert not plain["the next token of 6 (ms) ratio to (sf)2"]
    assert "every position of 6" in picture.read_text()
    with pytest.raises(FileExistsError, match=r"decided.csv exists; choose another file"):
        main(["(sf)2", "--decide", "--csv", str(figures)])
    with pytest.raises(ValueError, match="'scf' has c; --decide measures orders of s, w, m, f, e, g, r"):
        main(["(sf)2", "scf", "--decide"])


def test_the_letters_of_today_are_measured_beside_attention(costs):
    sizes = "--hidden_size 8 --heads 2 --lengths 6 --gated --no_bias --recurrence gated_delta --short_kernel_size 2"
    experts = "--num_experts 4 --num_experts_per_tok 2 --moe_intermediate_size 8"
    measured = costs("(sf)2", "rfge", *sizes.split(), *experts.split(), "--decide")["6"]
    for times in measured.values():
        assert {*times} == {"(sf)2", "rfge", "sf"}
        assert all(time > 0 for time in times.values())


def test_a_few_plain_transformers_are_timed_within_the_seconds_and_the_others_interpolated(monkeypatch, capsys):
    timed = []

    def time_stacks(config, orders, length, reads, rows, seconds):
        timed.append((orders, length, reads, rows, seconds))
        # five ms, and three for each letter more than two
        return {order: {read: [3.0 * len(expand(order)) - 1] for read in reads} for order in orders}

    monkeypatch.setattr("sublayers.training.metrics.order_decision.time_stacks", time_stacks)
    main(["(sf)12", "s5f19", "--lengths", "8", "16", "--seconds", "32", "--rows", "3", "--decide", "--json"])
    out, err = capsys.readouterr()
    assert err.startswith("timing 6 orders for about 32 s")
    orders = ["(sf)12", "s5f19", "sf", "(sf)2", "(sf)4", "(sf)8"]
    reads = (["one", "masked", "all"], ["next"])
    # four seconds for each of four reads of two lengths
    assert timed == [(orders, length, read, 3, 4) for length in (8, 16) for read in reads]
    for measured in json.loads(out).values():
        for times in measured.values():
            assert times == {"s5f19": 71} | {interleaved(n): 6 * n - 1 for n in range(1, 13)}


def test_table_compares_with_the_first_order(capsys):
    main(["(sf)12", "(sff)x5 (f)x9", "s5f19", "--hidden_size", "768", "--lengths", "128", "384"])
    text = capsys.readouterr().out
    assert row(text, "order") == ["(sf)12", "(sff)5f9", "s5f19"]
    assert row(text, "sublayers") == ["24", "24", "24"]
    assert row(text, "self-attention") == ["12", "5", "5"]
    assert row(text, "cross-attention") == ["0", "0", "0"]
    assert row(text, "feed-forward") == ["12", "19", "19"]
    assert row(text, "dynamic convolution") == ["0", "0", "0"]
    assert row(text, "parameters, M") == ["85.05", "101.57 (1.19)", "101.57 (1.19)"]
    assert row(text, "KV cache at 384, MiB") == ["13.50", "5.62 (0.42)", "5.62 (0.42)"]
    assert row(text, "GFLOP at 128, every") == ["22.35", "26.22 (1.17)", "26.22 (1.17)"]
    assert row(text, "GFLOP at 128, 15 %") == ["21.03", "14.71 (0.70)", "6.56 (0.31)"]
    assert row(text, "GFLOP at 384, one") == ["64.81", "38.18 (0.59)", "9.26 (0.14)"]
    assert row(text, "GFLOP at 384, prompt") == ["65.70", "39.06 (0.59)", "10.15 (0.15)"]
    assert "Positions read" in text


def test_what_there_is_nothing_to_compare_with_has_no_ratio(capsys):
    main(["(sf)12"])
    assert not re.search(r"\(\d\.\d\d\)", capsys.readouterr().out)
    main(["f3", "s3", "--hidden_size", "64", "--lengths", "1024"])
    assert row(capsys.readouterr().out, "KV cache at 1024, MiB") == ["0.00", "0.75"]


def test_nothing_is_cut_off_in_a_narrow_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    main(["(sf)12", "sandwich(12,5)", "s5f19", "(scf)8"])
    text = capsys.readouterr().out
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 60


def test_json_has_the_same_numbers(costs):
    options = "--hidden-size 8 --intermediate_size 24 --source-length 5 --bytes_per_number 4 --kernel-size 7 --heads 2"
    found = costs("(scf)x2", "sandwich(2, 1)", "dl", *options.split(), "--lengths", "10", "20")
    assert list(found) == ["(scf)x2", "sandwich(2, 1)", "dl"]
    assert found["dl"]["parameters"] == parameters("dl", 8, 24, 7, 2)
    assert found["dl"]["flops"]["20"]["every"] == flops("dl", 8, 24, 20, 20, 5, 7, 2)
    assert found["sandwich(2, 1)"]["order"] == "s2f2"
    cost = found["(scf)x2"]
    reads = {"every": 20, "15 %": 3, "one": 1}
    expected = {name: flops("(scf)2", 8, 24, 20, read, 5) for name, read in reads.items()}
    expected["prompt"] = flops("(scf)2", 8, 24, 20, 1, 5, keeps_cache=True)
    # two attentions to 21 tokens and two to the 5 of the source, whose keys are there
    expected["next"] = 2 * 2 * (6 * 8 * 8 + 2 * 8 * (21 + 5) + 2 * 8 * 24)
    assert cost["flops"].pop("20") == expected
    assert set(cost.pop("flops")) == {"10"}
    assert cost == {
        "order": "(scf)2",
        "sublayers": 6,
        **dict.fromkeys(ALPHABET, 0) | {"s": 2, "c": 2, "f": 2},
        "parameters": parameters("scfscf", 8, 24),
        "cache_bytes": {str(length): cache_bytes("scfscf", 8, length, 5, 4) for length in (10, 20)},
    }


def test_what_generation_costs(capsys):
    words = "--generation --causal --hidden_size 8 --heads 2 --short_kernel_size 3 --attention_window 64"
    main(["gfwsf", *words.split()])
    found = [line.split("│")[2:6] for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert [int(row[0].replace(",", "")) for row in found] == [1024, 4096, 16384, 65536, 131072]
    numbers = [[float(cell.replace(",", "")) for cell in row[1:]] for row in found]
    sizes = {"is_causal": True, "attention_window": 64, "letter_fields": {"short_kernel_size": 3}}
    maps, kernel = 4 * 8 * 8 * 3 + 2 * 2 * 8 * 32, 3 * 8
    for length, (prompt, token, cache) in zip([2**10, 2**12, 2**14, 2**16, 2**17], numbers, strict=True):
        assert token == pytest.approx(2 * (maps + kernel + 2 * 8 * (64 + length + 1)) / 1e9, abs=6e-4)
        assert prompt == pytest.approx(flops("gfwsf", 8, 32, length, 1, keeps_cache=True, **sizes) / 1e9, abs=6e-4)
        # keys and values of the window and the text, and two inputs of the kernel
        assert cache == pytest.approx(2 * 8 * (2 * (63 + length) + 2) / 2**20, abs=6e-4)


@pytest.mark.parametrize("words", [["24", "16", "8"], ["tapered(3,16)"]])
def test_each_feed_forward_sublayer_may_have_a_width(costs, words):
    found = costs("(sf)3", "--hidden_size", "8", "--lengths", "10", "--intermediate_size", *words)["(sf)3"]
    attention, products = flops("s3", 8, 0, 10, 10), 2 * 2 * 10 * 8 * (24 + 16 + 8)
    assert found["flops"]["10"]["every"] == attention + products
    assert found["parameters"] == parameters("(sf)3", 8, [24, 16, 8])
    with pytest.raises(ValueError, match="not those of --intermediate_size 24 16 8; give one number"):
        main(["(sf)3", "--decide", "--intermediate_size", *words])


def test_memory_of_transformer_xl(capsys, costs):
    flags = ["(sf)16", "par(32,5)", "--hidden_size=512", "--lengths=64", "--memory_length=640"]
    main(flags)
    text = capsys.readouterr().out
    # half precision: self-attention sublayers x tokens x width x 2
    assert row(text, "memory, MiB") == ["10.00", "3.75 (0.38)"]
    assert row(text, "parameters, M") == ["54.60", "62.49 (1.14)"]
    assert row(text, "GFLOP at 64, every") == ["25.30", "14.86 (0.59)"]
    cost = costs(*flags)["par(32,5)"]
    assert cost["order"] == "(sfff)6f8"
    assert cost["memory_bytes"] == memory_bytes("par(32,5)", 512, 640)
    assert cost["flops"]["64"]["one"] == flops("par(32,5)", 512, 2048, 64, 1, memory_length=640)
    assert cost["parameters"] == parameters("par(32,5)", 512, 2048, memory_length=640)


def test_defaults(costs):
    cost = costs("sc")["sc"]
    assert cost["parameters"] == parameters("sc", 1024, 4096)
    assert cost["cache_bytes"] == {str(length): cache_bytes("sc", 1024, length) for length in (128, 512, 2048)}
    # one size follows the other
    assert costs("sf", "--hidden_size", "8")["sf"]["parameters"] == parameters("sf", 8, 32)


BAD = {
    "ss(sf": "this parenthesis is never closed; add a ')'\n  ss(sf\n    ^",
    "sandwich(16,": "\n  sandwich(16,\n   ^",
    "sandwich(16,17)": "k=17 is out of range; give a number from 0 to 16",
    "sandwich(16)": "write sandwich(n, k, decoder)",
    "": "\n  \n  ^",
    "--hidden_size=0": "0 is not a positive number",
    "--intermediate_size=-4": "-4 is not a positive number",
    "--intermediate_size x": "'x' is neither a width nor several: invalid literal for int() with base 10: 'x'",
    "--intermediate_size tapered(3)": "write tapered(8, 1024) or tapered(8, 1024, 1.5, 0.5)",
    "--intermediate_size 8 16": "give one for each, or one number for all",
    "--lengths=many": "invalid positive value: 'many'",
    "--source_length=0": "0 is not a positive number",
    "--key_value_heads=3": "--heads=16 is not a multiple of --key_value_heads=3",
}


@pytest.mark.parametrize("words", BAD)
def test_bad_orders_and_sizes_are_refused(words):
    with pytest.raises(ValueError, match=f"{re.escape(BAD[words])}$"):
        main(["sf", *(words.split() or [""])])


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_paints_a_picture_and_overwrites_none(kind, tmp_path):
    file = tmp_path / f"orders.{kind}"
    main(["sandwich(4,2)", "dlf", "--picture", str(file)])
    painted = file.read_bytes()
    assert len(painted) > 1000
    with pytest.raises(FileExistsError, match="exists; choose another file"):
        main(["sf", "--picture", str(file)])
    assert file.read_bytes() == painted


def test_todays_parts(costs):
    flags = ["--hidden_size=64", "--intermediate_size=96", "--heads=8", "--lengths=20"]
    parts = ["--key_value_heads=2", "--head_dim=16", "--qk_norm", "--attention_output_gate", "--rotary", "--gated"]
    parts += ["--rms", "--no_bias"]
    cost = costs("sfsf", *flags, *parts)["sfsf"]
    fields = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 8, "num_key_value_heads": 2}
    fields |= {"head_dim": 16, "qk_norm": True, "attention_output_gate": True}
    fields |= {"position_embedding_type": "rotary", "gated_feed_forward": True}
    fields |= {"norm_type": "rms", "attention_bias": False, "attention_output_bias": False, "mlp_bias": False}
    with torch.device("meta"):
        body = SandwichLMModel(SandwichLMConfig(sublayer_order="sfsf", **fields))
    assert cost["parameters"] == sum(parameter.numel() for parameter in body.layers.parameters())
    # two sublayers, keys and values of two heads, half precision
    assert cost["cache_bytes"] == {"20": 2 * 2 * 2 * 16 * 20 * 2}
    assert cost["flops"]["20"]["one"] == flops("sfsf", length=20, read=1, **body.config.sizes._asdict())


def test_experts(capsys, costs):
    flags = ["--num_experts=4", "--num_experts_per_tok=2", "--moe_intermediate_size=6"]
    flags += ["--shared_expert_intermediate_size=5", "--hidden_size=8", "--no_bias", "--rms", "--lengths=3"]
    cost = costs("e", *flags)["e"]
    assert cost["parameters"] == 8 * (3 * 4 * 6 + 4 + 3 * 5) + 8
    assert cost["flops"]["3"]["every"] == 2 * 3 * 8 * (3 * 2 * 6 + 4 + 3 * 5)
    with pytest.raises(SystemExit, match="2"):
        cli.main(["order", "e", *flags, "--num_experts=1"])
    assert "num_experts_per_tok=2 is more than num_experts=1; give fewer, or more experts" in capsys.readouterr().err


def test_windows(costs):
    cost = costs("wf", "--lengths=300", "--attention_window=64", "--causal", "--hidden_size=32")["wf"]
    assert cost["w"] == 1
    # a token sees itself, and 63 before it that are kept
    assert cost["cache_bytes"] == {"300": 2 * 2 * 32 * 63}
    sizes = {"attention_window": 64, "is_causal": True}
    assert cost["flops"]["300"]["every"] == flops("wf", 32, 128, 300, 300, **sizes) < flops("sf", 32, 128, 300, 300)


def test_a_single_query_needs_keys_where_they_are_turned_or_normalised(costs):
    for flags, folds in ([], True), (["--rotary"], False), (["--qk_norm"], False):
        cost = costs("sf", "--lengths=20", *flags)["sf"]["flops"]["20"]["one"]
        assert cost == flops("sf", 1024, 4096, 20, 1, folds_attention=folds)

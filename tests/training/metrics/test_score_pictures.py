"""Pictures of scores against costs, and those that documents show of them."""

import itertools
import re
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from sublayers.training.commands.results import DRAWN, main, panels
from sublayers.training.metrics.pictures import draw_costs, write_names
from sublayers.training.metrics.score_pictures import Panel, draw_scores
from sublayers.training.results import read

ROOT = Path(__file__).resolve().parents[3]
FIGURES = """model,order,kind,score,score ±,time
teacher,(sf)6,teacher,82.0,,1.00
`(sf)2`,(sf)2,plain,78.0,0.4,0.10
`(sf)3`,(sf)3,plain,79.0,0.0,0.20
`s6f6`,s6f6,re-ordered,77.0,,0.20
"`(sf)6`, narrow",(sf)6,narrower,14.0,,0.15
always yes,,,51.0,,
"""
PANEL = Panel("score", "time", "quality", "time of a text")
MARK = "<!-- results/some.csv drawn: score as quality against\ntime as time of a text -->\n![alt](some.svg)\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("results").mkdir()
    Path("results/some.csv").write_text(FIGURES)
    Path("card.md").write_text(MARK)
    return tmp_path


def texts(picture: Path) -> list[str]:
    """What is written in a picture."""
    return re.findall(r"<!-- (.*?) -->", picture.read_text())


@pytest.fixture
def saved(monkeypatch):
    """The figures that are saved."""
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    return figures


def check_names(axes, places):
    """Names cover neither each other nor points."""
    boxes = [text.get_window_extent() for text in axes.texts]
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
    assert not any(box.contains(*axes.transData.transform(place)) for box in boxes for place in places)


def test_a_picture_has_short_names_and_tells_what_is_far_below(folder):
    draw_scores(read(Path("results/some.csv")), [PANEL], Path("some.svg"))
    written = texts(Path("some.svg"))
    assert {"(sf)2", "(sf)3", "s6f6", "quality", "time of a text", "plain", "re-ordered"} < {*written}
    assert {"teacher", "one seed", "far below: (sf)6, narrow: 14.0"} < {*written}
    # neither what is far below nor what is no model has a point
    assert not {"(sf)6", "narrower", "always yes"} & {*written}


def test_the_axes_are_where_the_points_are_and_deviations_are_seen(folder, saved):
    draw_scores(read(Path("results/some.csv")), [PANEL], Path("some.svg"))
    axes = saved[0].axes[0]
    low, high = axes.get_ylim()
    assert 76 < low < 77
    assert 82 < high < 83
    assert max(axes.get_xlim()) < 0.3
    bars = [segment[:, 1].tolist() for bar in axes.collections for segment in bar.get_segments()]
    assert bars == [pytest.approx([77.6, 78.4]), [79, 79]]


def test_names_cover_neither_each_other_nor_points():
    figure = Figure(layout="constrained")
    axes = figure.subplots()
    # the second stands where the name of the first would
    places = [(0.1, 0.5), (0.2, 0.53), (0.1, 0.51), (0.11, 0.5), (0.0, 0.0), (1.0, 1.0)]
    for place in places:
        axes.plot(*place, "o")
    write_names([(axes, [(f"a long name {i}", *place) for i, place in enumerate(places)], [])])
    assert axes.texts
    check_names(axes, places)


def test_a_crowd_has_only_names_that_cover_nothing(saved):
    points = [(f"random {i}", 1 + i % 7 / 10, 5 + i * i % 60 / 100) for i in range(60)]
    draw_costs(points, "flops", Path("cost.svg"))
    axes = saved[0].axes[0]
    assert len(axes.texts) > 10
    check_names(axes, [place for _, *place in points])


def test_the_command_draws_what_a_document_says(folder, capsys):
    main(["card.md"])
    assert "some.svg is drawn" in capsys.readouterr().out
    first = Path("some.svg").read_bytes()
    draw_scores(read(Path("results/some.csv")), [PANEL], Path("other.svg"))
    assert texts(Path("some.svg")) == texts(Path("other.svg"))
    main(["card.md"])
    assert Path("some.svg").read_bytes() == first


@pytest.mark.parametrize("panel", ["score", "score against price", "rank against time"])
def test_a_picture_of_no_columns_is_refused(folder, panel):
    Path("card.md").write_text(MARK.replace("score as quality against\ntime as time of a text", panel))
    message = rf"^'{panel}' draws no columns of results/some.csv; write SCORE against COST$"
    with pytest.raises(ValueError, match=message):
        main(["card.md"])


def test_pictures_of_documents_show_their_figures(monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    found = 0
    for document in [Path("README.md"), *Path("model_cards").glob("*.md")]:
        for match in DRAWN.finditer(document.read_text()):
            draw_scores(read(Path(match[1])), panels(match), tmp_path / "new.svg")
            # fonts and places may differ from one version of matplotlib to the next
            assert sorted(texts(tmp_path / "new.svg")) == sorted(texts(document.parent / match[3])), "run make results"
            found += 1
    assert found == 4

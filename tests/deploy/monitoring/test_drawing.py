"""Panels drawn from their JSON: lines, marks and states."""

import math
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="not installed: the extra 'bench' has it")

from matplotlib.figure import Figure

from deploy.grafana.answers import Series, Window
from deploy.grafana.drawing import COLORS, draw, said

WINDOW = Window(begin=0.0, end=100.0, step=10.0, rate_interval=40.0)
Dashboards = dict[str, dict[str, Any]]


@pytest.fixture
def axes():
    return Figure().subplots()


def panel(dashboards: Dashboards, uid: str, title: str) -> dict[str, Any]:
    [matching] = [shown for shown in dashboards[uid]["panels"] if shown["title"] == title]
    return matching


def series(name: str, values: dict[float, float], mark: bool = False) -> Series:
    return Series(name=name, mark=mark, times=list(values), values=list(values.values()))


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0, "s", "0"),
        (0.0042, "s", "4.2 ms"),
        (5400.0, "s", "1.5 h"),
        (3.0 * 2**20, "bytes", "3 MiB"),
        (0.305, "percentunit", "30.5 %"),
        (12500.0, "ops", "12.5 k/s"),
        (65536.0, "short", "65.5 k"),
        (0.00321, "short", "0.00321"),
        (-90.0, "s", "-1.5 min"),
    ],
)
def test_a_number_has_its_unit(value: float, unit: str, text: str) -> None:
    assert said(value, unit) == text


def test_a_gap_stays_a_gap_and_a_mark_is_a_point(axes, dashboards: Dashboards) -> None:
    scale = series("loss scale", {0.0: 2.0, 10.0: 4.0, 50.0: 8.0})
    draw(
        axes,
        panel(dashboards, "genesis-agent", "Loss scale and overflows"),
        [scale, series("overflow", {10.0: 4.0}, mark=True)],
        WINDOW,
    )
    line, points = axes.get_lines()
    assert [value for value in line.get_ydata() if not math.isnan(value)] == [2.0, 4.0, 8.0]
    assert len(line.get_ydata()) == 4, "one break"
    assert (points.get_linestyle(), points.get_marker()) == ("None", "o")
    assert axes.get_yscale() == "log"


def test_a_state_has_its_text_and_colour(axes, dashboards: Dashboards) -> None:
    states = series("se-darwin", {0.0: 2.0, 10.0: 2.0, 20.0: 1.0, 60.0: 1.0})
    draw(axes, panel(dashboards, "genesis-overview", "Precision in force"), [states], WINDOW)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["FP16", "FP32"]
    stretches = [(patch.get_x() * 86400, patch.get_width() * 86400) for patch in axes.patches[:3]]
    assert stretches == [pytest.approx(stretch) for stretch in ((0, 20), (20, 10), (60, 10))]
    assert axes.patches[0].get_facecolor() == pytest.approx(rgba(COLORS["green"]))


def test_an_empty_answer_is_shown_as_no_data(axes, dashboards: Dashboards) -> None:
    draw(axes, panel(dashboards, "genesis-overview", "Guard trips"), [], WINDOW)
    assert [text.get_text() for text in axes.texts] == ["No data"]


def test_a_panel_shows_why_it_is_empty(axes, dashboards: Dashboards) -> None:
    draw(axes, panel(dashboards, "genesis-agent", "GPU memory"), [], WINDOW)
    assert [text.get_text() for text in axes.texts] == ["No data: needs a GPU"]


def rgba(color: str) -> tuple[float, ...]:
    return (*(int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)), 1.0)

"""Figures: SVG that any page can hold, whatever the labels and values are."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET

import pytest

from infrastructure.precision_lab.report.drawing import (
    Axis,
    Dot,
    Line,
    draw_dots,
    draw_lines,
    tone_of,
)

HOSTILE = "<script>alert(1)</script> $\\frac$ & \"'"


def test_lines_are_svg_with_texts_and_colours_of_the_page() -> None:
    points = [(n, 10.0 ** -(n % 5)) for n in range(1000)]
    lines = [
        Line(label=HOSTILE, tone="bf16", points=points, band=[(y / 2, 2 * y) for _, y in points]),
        Line(label="FP32", tone="fp32", points=[(0.0, 1.0), (5.0, math.nan), (9.0, 0.5)]),
        Line(label="none", tone="fp16", points=[(0.0, math.inf), (1.0, -1.0), (2.0, 0.0)]),
    ]
    svg = draw_lines(
        lines, Axis(label="update"), Axis(label="KL, nats", log=True), describe=HOSTILE
    )
    assert svg.startswith('<svg role="img" aria-label="&lt;script')
    assert "<script" not in svg
    assert {"update", "KL, nats", "FP32", HOSTILE} <= _labels(svg)
    assert "none" not in _labels(svg)
    assert "var(--bf16, #" in svg
    assert "metadata" not in svg
    assert len(svg) < 60_000


def test_rows_without_a_value_say_so() -> None:
    dots = [
        Dot(label="bf16_pure", tone="bf16", values=[1e-3, 2e-3, math.nan]),
        Dot(label=HOSTILE, tone="mixed", values=[math.inf, -1.0]),
        Dot(label="fp32_baseline", tone="fp32", values=[0.0, 0.0]),
    ]
    svg = draw_dots(dots, Axis(label="gap", log=True), describe="gap")
    assert {"bf16_pure", HOSTILE, "no value", "0"} <= _labels(svg)
    assert "<script" not in svg


@pytest.mark.process
def test_extreme_values_draw() -> None:
    points = [(0.0, 5e-324), (1.0, 1.7e308), (2.0, 1.0)]
    for log in (False, True):
        line = Line(label="x", tone="fp16", points=points)
        ET.fromstring(draw_lines([line], Axis(label="x"), Axis(label="y", log=log), describe=""))
        dots = [Dot(label="x", tone="fp16", values=[y for _, y in points])]
        ET.fromstring(draw_dots(dots, Axis(label="y", log=log), describe=""))
    ET.fromstring(draw_lines([], Axis(label="x"), Axis(label="y", log=True), describe=""))


def test_colours_follow_the_half_type() -> None:
    expected = {
        "fp32_baseline": "fp32",
        "bf16_fp32_kl": "bf16",
        "mixed_recommended": "bf16",
        "mixed_recommended_fp16": "fp16",
        "precision-rl": "fp16",
        "bf16_train_fp16_infer": "mixed",
        "a preset of ours": "mixed",
    }
    assert {name: tone_of(name) for name in expected} == expected


def _labels(svg: str) -> set[str]:
    root = ET.fromstring(svg)
    return {each.text for each in root.iter("{http://www.w3.org/2000/svg}text") if each.text}

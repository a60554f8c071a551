"""The files of the report: they open offline, and no result can put anything into them."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from infrastructure.precision_lab.report import WrittenReport, write_report
from tests.infrastructure.precision_lab.report.results_folder import (
    write_cell,
    write_json,
    write_sweep,
)

pytestmark = pytest.mark.process  # trains for seconds

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>[a](javascript:b) $\\frac{{}}$"


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: dict[str, list[str]] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, []).append(value or "")


def parsed(html: str) -> _Page:
    page = _Page()
    page.feed(html)
    return page


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> WrittenReport:
    """A sweep with a damaged file, and every other result with hostile texts in it."""
    folder = tmp_path_factory.mktemp("results")
    write_sweep(folder)
    write_cell(folder, "<script>alert(2)<", 0, category=HOSTILE, reason=HOSTILE)
    (folder / "runs" / "bf16_pure_seed0" / "run_summary.json").write_text("{")
    (folder / "runs" / f"{'x' * 20}_seed1").mkdir()
    write_json(folder / "bisect.json", {"culprits": [{"place": HOSTILE, "share": HOSTILE}]})
    environment = {HOSTILE: HOSTILE, "versions": {HOSTILE: 1}}
    write_json(
        folder / "probe" / "summary.json",
        {"environment": environment, "not_measured": [HOSTILE], "weights_sha256": HOSTILE},
    )
    return write_report(folder, folder / "report")


def test_the_page_holds_everything_and_loads_nothing(written: WrittenReport) -> None:
    html = written.html.read_text()
    page = parsed(html)
    assert page.tags.isdisjoint({"script", "link", "img", "iframe", "object", "embed", "base"})
    assert "src" not in page.attributes
    links = page.attributes["href"] + page.attributes.get("xlink:href", [])
    assert all(link.startswith("#") for link in links)
    assert set(re.findall(r"url\((.)", html)) <= {"#"}
    assert "@import" not in html
    assert html.count("<svg") == len([*(written.html.parent / "plots").glob("*.svg")]) > 10
    assert "default-src 'none'" in html
    assert written.verdict[0] in html
    for figure in re.findall(r"!\[[^]]*\]\(([^)]*)\)", written.markdown.read_text()):
        assert (written.markdown.parent / figure).is_file()


def test_hostile_results_are_escaped(written: WrittenReport) -> None:
    page = parsed(written.html.read_text())
    assert "onerror" not in page.attributes
    markdown = written.markdown.read_text()
    assert not re.search(r"(?<!\\)<(script|img)", markdown)
    assert not re.search(r"(?<!\\)\]\(javascript", markdown)
    assert "\\<script\\>" in markdown


def test_damage_is_shown_in_both_files(written: WrittenReport) -> None:
    assert sum("run_summary.json: " in each for each in written.problems) == 1
    assert sum("step_metrics.jsonl: " in each for each in written.problems) == 1
    for text in (written.html.read_text(), written.markdown.read_text().replace("\\", "")):
        assert "run_summary.json: " in text
        assert "not ended" in text

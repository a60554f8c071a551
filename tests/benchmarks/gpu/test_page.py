"""The page, and the code that the command ends with."""

from pathlib import Path

from benchmarks.gpu.claims import ROOT
from benchmarks.gpu.findings import Finding
from benchmarks.gpu.page import write_page
from benchmarks.gpu.plan import Section
from benchmarks.gpu.results import Results
from benchmarks.gpu.supervise import SectionEnd

FLEET = Section(name="fleet", module="", seconds=1.0)


def results(outcome: str, problem: str = "") -> Results:
    finding = Finding(claim="fleet-adam", outcome=outcome, measured="a | b")  # type: ignore[arg-type]
    end = SectionEnd(section=FLEET, problem=problem, findings=[finding], tables=["a table"])
    return Results(machine={"device": "A GPU"}, rehearsal=False, seconds=2.0, ends=[end])


def test_what_was_refuted_comes_first_with_a_link_to_its_document() -> None:
    folder = ROOT / "benchmark_results"
    folder.mkdir(exist_ok=True)
    page = folder / "gpu-test.md"
    try:
        write_page(results("refuted"), page)
        lines = page.read_text().splitlines()
    finally:
        page.unlink(missing_ok=True)
    assert lines[0] == "# What this project says about CUDA: A GPU"
    first = next(line for line in lines if "**" in line)
    assert "**refuted** | a \\| b |" in first
    assert "](../docs/how-to/fleet.md))" in first
    assert "a table" in lines


def test_the_exit_code_tells_what_was_refuted_or_failed(tmp_path: Path) -> None:
    assert results("proven").exit_code() == 0
    assert results("refuted").exit_code() == 1
    assert results("proven", problem="crashed by SIGSEGV").exit_code() == 1
    assert results("not measurable").exit_code() == 0

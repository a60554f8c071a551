"""Real sections that crash and hang."""

from pathlib import Path

import psutil
import pytest

from benchmarks.gpu.plan import Section
from benchmarks.gpu.results import Results
from benchmarks.gpu.supervise import SectionEnd, run_section

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("_adopting")]
CRASHES = Section(name="fleet", module="tests.benchmarks.gpu.misbehaving", seconds=300)


def reasons(*ends: SectionEnd) -> dict[str, str]:
    results = Results(machine={"device": "none"}, rehearsal=True, seconds=1.0, ends=ends)
    return {claim.name: finding.reason for claim, finding in results.findings()}


@pytest.mark.usefixtures("_forked_sections")
def test_a_crash_costs_what_was_not_decided_and_leaves_no_process(tmp_path: Path) -> None:
    end = run_section(CRASHES, tmp_path / "it", seconds=300, device="cpu", quick=True)
    assert end.problem == "crashed by SIGSEGV"
    assert [(each.claim, each.outcome) for each in end.findings] == [("fleet-bits", "proven")]
    assert not psutil.pid_exists(int((tmp_path / "it" / "left-behind").read_text()))
    assert "fleet crashed by SIGSEGV" in reasons(end)["fleet-adam"]
    assert reasons(end)["fleet-bits"] == ""


def test_one_that_does_not_end_is_killed(tmp_path: Path) -> None:
    end = run_section(CRASHES, tmp_path / "it", seconds=0.2, device="cpu", quick=True)
    assert end.problem == "killed after its 0 s"
    assert end.findings == []
    assert reasons(end)["fleet-adam"].startswith("the section fleet was killed")


@pytest.mark.usefixtures("_forked_sections")
def test_an_error_is_told_with_the_last_line_of_the_log(tmp_path: Path) -> None:
    broken = Section(name="fleet", module="tests.benchmarks.gpu.nowhere", seconds=300)
    end = run_section(broken, tmp_path / "it", seconds=300, device="cpu", quick=True)
    assert end.problem == "failed with exit code 1"
    assert "No module named 'tests.benchmarks.gpu.nowhere'" in reasons(end)["fleet-bits"]


def test_without_time_nothing_starts(tmp_path: Path) -> None:
    end = run_section(CRASHES, tmp_path / "it", seconds=0.0, device="cpu", quick=True)
    assert end.problem == "not started: the time was over"
    assert not (tmp_path / "it").exists()

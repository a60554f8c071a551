"""The file of a section's findings."""

from pathlib import Path

import pytest

from benchmarks.gpu.findings import FindingsFile, read_findings


def test_what_was_written_is_read_and_a_cut_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "findings"
    file = FindingsFile(path, frozenset({"a", "b", "c"}))
    file.decide("a", holds=False, measured="twice", ratio=2.0, bad=float("nan"))
    file.cannot("b", "no reason")
    file.show("a table")
    with path.open("a") as raw:
        raw.write('{"finding": {"claim": "c"')
    (refuted, missing), tables = read_findings(path)
    assert (refuted.outcome, refuted.figures) == ("refuted", {"ratio": 2.0, "bad": None})
    assert (missing.outcome, missing.reason) == ("not measurable", "no reason")
    assert tables == ["a table"]
    assert read_findings(tmp_path / "none") == ([], [])


def test_a_claim_is_decided_once_and_by_its_own_section(tmp_path: Path) -> None:
    file = FindingsFile(tmp_path / "findings", frozenset({"a"}))
    file.cannot("a", "no reason")
    for claim in ("a", "b"):
        with pytest.raises(ValueError, match=f"{claim} is decided"):
            file.decide(claim, holds=True, measured="")

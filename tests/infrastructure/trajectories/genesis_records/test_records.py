from pathlib import Path

import pytest

from infrastructure.agent_contract import Transition
from infrastructure.trajectories.genesis_records.records import (
    Record,
    decode_line,
    distinct_state,
    outcome,
    read_document,
    read_lines,
)


class Named(Record):
    name: str
    score: float = 0.0


@pytest.fixture
def skipped() -> list[tuple[int, str]]:
    return []


@pytest.fixture
def on_skip(skipped: list[tuple[int, str]]):
    return lambda _path, line, reason: skipped.append((line, reason))


def test_damaged_lines_are_reported_and_the_others_read(
    tmp_path: Path, on_skip, skipped: list[tuple[int, str]]
) -> None:
    path = tmp_path / "lines"
    path.write_text('\ufeff{"name": "a", "more": 1}\n\n{"name": 3}\nnonsense\n{"name": "b"}\n')

    def decode(line: bytes) -> list[Transition]:
        return [Transition(group=decode_line(line, Named).name, observation={}, action={})]

    assert [each.group for each in read_lines(path, decode, on_skip)] == ["a", "b"]
    assert [line for line, _ in skipped] == [3, 4]
    assert skipped[0][1].startswith("name: ")


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[" * 100_000])
def test_a_damaged_document_is_reported(
    tmp_path: Path, on_skip, skipped: list[tuple[int, str]], content: bytes
) -> None:
    (tmp_path / "document").write_bytes(content)
    assert read_document(tmp_path / "document", on_skip) is None
    assert len(skipped) == 1
    assert "JSON" in skipped[0][1]


def test_a_document_may_hold_any_number(tmp_path: Path, on_skip) -> None:
    (tmp_path / "document").write_text('{"score": ' + "9" * 5000 + "}")
    assert read_document(tmp_path / "document", on_skip) == {"score": float("inf")}


def test_states_that_differ_in_spaces_and_case_are_one() -> None:
    assert distinct_state(" Fix  the bug", "Now") == distinct_state("fix the BUG", "now ")
    assert distinct_state("a", "b") != distinct_state("a b")
    assert distinct_state() == "(empty)"


def test_the_score_decides_success_unless_it_is_known() -> None:
    assert outcome(0.0) == {"success": False, "score": 0.0}
    assert outcome(1.0)["success"] is True
    assert outcome(1.0, success=False)["success"] is False

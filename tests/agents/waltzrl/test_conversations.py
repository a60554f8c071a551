from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.waltzrl.conversations import LONGEST_LINE, read_conversations
from agents.waltzrl.rewards import Labels

STOPPED = {
    "conversation_id": "one",
    "prompt": "How do I kill a process?",
    "response": "I cannot help with that.",
    "unsafe": False,
    "overrefuse": True,
}
REVISED = {
    **STOPPED,
    "feedback": "It is a program: help.",
    "revised": "Use kill and its number.",
    "revised_unsafe": False,
    "revised_overrefuse": False,
}


def read(folder: Path) -> tuple[list[str], list[tuple[str, int, str]]]:
    skipped: list[tuple[str, int, str]] = []
    found = read_conversations(
        folder, lambda path, line, reason: skipped.append((path.name, line, reason))
    )
    return [each.digest for each in found], skipped


def test_records_are_read_once_with_their_labels(tmp_path: Path) -> None:
    lines = [json.dumps(STOPPED), json.dumps(REVISED), "", json.dumps(STOPPED)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "b.jsonl").write_text(json.dumps(REVISED) + "\n")
    (tmp_path / "notes.txt").write_text("not read")
    stopped, revised = read_conversations(tmp_path, lambda *_: pytest.fail("nothing is wrong"))
    assert (stopped.conversation.before, stopped.conversation.after) == (Labels(False, True), None)
    assert revised.conversation.after == Labels(False, False)
    assert read(tmp_path) == ([stopped.digest, revised.digest], [])


def test_a_line_that_is_being_written_is_left_for_later(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    line = json.dumps(STOPPED)
    path.write_text(line[:40])
    assert read(tmp_path) == ([], [])
    path.write_text(line + "\n")
    assert len(read(tmp_path)[0]) == 1


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ("{", "Invalid JSON"),
        ("[]", "an object"),
        (json.dumps({**STOPPED, "unsafe": "no"}), "unsafe: "),
        (json.dumps({**STOPPED, "conversation_id": ""}), "conversation_id: "),
        (json.dumps({**STOPPED, "prompt": None}), "prompt: "),
        (json.dumps({**STOPPED, "revised": "Yes."}), "a second reply needs all of feedback"),
        (json.dumps({**REVISED, "feedback": ""}), "a second reply needs all of feedback"),
        (json.dumps({**REVISED, "revised_unsafe": None}), "leave all of them out"),
        (json.dumps({**STOPPED, "response": "x" * LONGEST_LINE}), "longer than"),
    ],
)
def test_a_damaged_line_costs_itself(tmp_path: Path, record: str, reason: str) -> None:
    good = json.dumps(STOPPED)
    (tmp_path / "a.jsonl").write_text(f"{good}\n{record}\n{json.dumps(REVISED)}\n")
    digests, [(name, line, said)] = read(tmp_path)
    assert (len(digests), name, line) == (2, "a.jsonl", 2)
    assert reason in said


@given(st.binary(max_size=300))
def test_no_file_raises(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.mktemp("any")
    (folder / "a.jsonl").write_bytes(content)
    read(folder)

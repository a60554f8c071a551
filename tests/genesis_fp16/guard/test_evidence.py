"""Evidence bundles: complete, readable, and at the path that the decision names."""

import json
import math
import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from genesis_fp16.domain.guard import Decision, GuardState, Trigger
from genesis_fp16.guard.evidence import (
    EvidenceError,
    read_evidence,
    unrecorded_decisions,
    write_evidence,
)

DECISION = Decision(
    agent="a", state=GuardState.TRIPPED, at=1_700_000_000.25, trigger=Trigger.UNDERFLOW, run_id="r"
)


def test_a_bundle_is_json_below_the_home_folder(tmp_path: Path) -> None:
    seen = {"scales": [1.0, math.inf], "nothing": math.nan, "inside": {"list": (1, "x")}}
    written = write_evidence(tmp_path, DECISION, seen)
    path = tmp_path / written.evidence
    assert written.evidence == "guard/a/20231114T221320.250000-tripped.json"
    bundle = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert (bundle["trigger"], bundle["state"], bundle["run_id"]) == ("underflow", "tripped", "r")
    assert bundle["scales"] == [1.0, "inf"]
    assert bundle["inside"] == {"list": [1, "x"]}
    read = read_evidence(tmp_path, written)
    assert read is not None
    assert read.model_dump(exclude_unset=True) == bundle
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def bundle_with(home: Path, content: bytes) -> Decision:
    written = write_evidence(home, DECISION, {})
    (home / written.evidence).write_bytes(content)
    return written


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "EOF"),
        (b"{torn", "key must be a string"),
        (b"[]", "dictionary"),
        (b"[" * 200_000, "recursion limit"),
        (b'{"at": NaN}', "expected value"),
        (b'{"statistics": 5}', "statistics: Input should be a valid list"),
        (b'{"statistics": [{}]}', "statistics.0.loss_scale: Field required"),
        (b'{"offending_modules": [1]}', "offending_modules.0: "),
        (b'{"checkpoint": "x"}', "checkpoint: "),
        (b'{"checkpoint": {"step": 1, "path": {}}}', "checkpoint.path: "),
    ],
)
def test_a_bundle_that_cannot_be_read_is_named_with_the_reason(
    tmp_path: Path, content: bytes, why: str
) -> None:
    written = bundle_with(tmp_path, content)
    with pytest.raises(EvidenceError) as caught:
        read_evidence(tmp_path, written)
    assert str(caught.value).startswith(f"{tmp_path / written.evidence} cannot be read: ")
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("gone", "No such file"),
        ("pipe", "not a regular file"),
        ("folder", "directory"),
        ("sparse", "2147483648 bytes"),
        ("socket", "No such device"),
        ("endless", "not a regular file"),
    ],
)
def test_a_path_that_is_not_a_small_file_is_refused_at_once(
    tmp_path: Path, kind: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = write_evidence(tmp_path, DECISION, {})
    path = tmp_path / written.evidence
    path.unlink()
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "sparse":
            path.touch()
            os.truncate(path, 2 << 30)
        case "socket":
            monkeypatch.chdir(path.parent)  # a socket's name is short
            with socket.socket(socket.AF_UNIX) as bound:
                bound.bind(path.name)
        case "endless":
            path.symlink_to("/dev/zero")
    with pytest.raises(EvidenceError, match=f"cannot be read: .*{why}"):
        read_evidence(tmp_path, written)


@pytest.mark.parametrize("name", ["\0", "a" * 5000, "\ud800"])
def test_an_invalid_path_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(EvidenceError):
        read_evidence(tmp_path, replace(DECISION, evidence=name))


def test_a_decision_without_a_bundle_has_none(tmp_path: Path) -> None:
    assert read_evidence(tmp_path, DECISION) is None


def test_the_guards_last_decision_is_found_if_the_store_lacks_it(tmp_path: Path) -> None:
    known = write_evidence(tmp_path, DECISION, {})
    lost = write_evidence(tmp_path, replace(DECISION, at=DECISION.at + 9, level=2), {"numbers": 1})
    assert list(unrecorded_decisions(tmp_path, {known.evidence})) == [lost]
    assert list(unrecorded_decisions(tmp_path, {known.evidence, lost.evidence})) == []


def test_operators_decisions_and_damaged_files_are_not_recovered(tmp_path: Path) -> None:
    assert list(unrecorded_decisions(tmp_path, set())) == []
    write_evidence(tmp_path, replace(DECISION, agent="b", actor="ann"), {})
    bundle_with(tmp_path, b"{torn")
    stolen = write_evidence(tmp_path, replace(DECISION, agent="c"), {})
    (tmp_path / "guard" / "d").mkdir()
    (tmp_path / stolen.evidence).rename(tmp_path / "guard" / "d" / "x.json")
    assert list(unrecorded_decisions(tmp_path, set())) == []


def test_names_in_a_bundle_are_read_as_plain_text(tmp_path: Path) -> None:
    content = b'{"offending_modules": ["\\u001b[2J"], "checkpoint": {"step": 1, "path": "\\u001b"}}'
    read = read_evidence(tmp_path, bundle_with(tmp_path, content))
    assert read is not None
    assert read.checkpoint is not None
    [name] = read.offending_modules
    assert "\x1b" not in name + read.checkpoint.path

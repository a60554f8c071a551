"""A group's data leaves the log and the replay buffer, while others use them; nothing else does."""

import json
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from infrastructure.agent_contract import Transition
from infrastructure.decisions import DecisionLog, Place, WaitingOutcomes, take_in
from infrastructure.decisions import removal as removal_module
from infrastructure.decisions.removal import Removal, remove_group, removed_at
from infrastructure.trajectories import ReplayBuffer
from infrastructure.trajectories import removal as lines_module
from infrastructure.trajectories.compaction import compact

SECRET = "what the customer wrote"
BODY = {
    "observation": {"text": SECRET},
    "action": {"tool": "a"},
    "reward": 1.0,
    "next_observation": {},
    "terminated": False,
    "propensity": None,
    "info": {},
}


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal_module, "_REQUESTS_SECONDS", 0.0)


@pytest.fixture
def log(tmp_path: Path) -> Any:
    with closing(DecisionLog(tmp_path / "decisions")) as log:
        yield log


def fill(log: DecisionLog, name: str, group: str, text: str) -> Place:
    """Record a decision with its outcome, and a transition."""
    decision = {
        **{"kind": "decision", "id": name, "group": group, "observation": {"text": text}},
        **{"actions": [{"tool": "a"}], "chosen": 0, "propensity": 1.0, "deadline": 1e9},
        **{"answer": {"version": "v1"}},
    }
    (place,) = log.append([decision])
    outcome = {
        **{"kind": "outcome", "id": name, "of": place, "state": "recorded", "deadline": 1e9},
        **{"next_observation": {"text": text}, "reward": 1.0},
    }
    body = BODY | {"group": group, "observation": {"text": text}}
    log.append([outcome, {"kind": "transition", "id": f"t-{name}", "transition": body}])
    return place


def remove(folder: Path, **options: Any) -> Removal:
    return remove_group(folder / "decisions", folder / "replay", "customer-7", **options)


def groups(folder: Path) -> list[str]:
    skipped = list[str]()
    buffer = ReplayBuffer(folder / "replay", lambda *problem: skipped.append(str(problem)))
    read = [transition.group for transition in buffer.read()]
    assert skipped == []
    return sorted(read)


def everything(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_it_leaves_log_and_buffer_and_nothing_else_does(tmp_path: Path, log: Any) -> None:
    fill(log, "d1", "customer-7", SECRET)
    other = fill(log, "d2", "customer-8", "something else")
    take_in(tmp_path / "decisions", tmp_path / "replay", now=0.0)
    fill(log, "d3", "customer-7", SECRET)  # not taken in yet
    with closing(ReplayBuffer(tmp_path / "replay")) as buffer:
        for group in ("customer-7", "customer-9"):
            buffer.append(Transition(group=group, observation={"text": SECRET[:4]}, action={}))
        before = removed_at(tmp_path / "decisions")
        removed = remove(tmp_path)
        buffer.append(Transition(group="customer-9", observation={}, action={}))
    assert (removed.records, removed.count) == (6, 3)
    assert removed_at(tmp_path / "decisions") != before
    assert SECRET.encode() not in everything(tmp_path)
    assert b"customer-7" not in everything(tmp_path)
    assert groups(tmp_path) == ["customer-8", "customer-8", "customer-9", "customer-9"]
    assert log.read(other)["id"] == "d2", "places of other records hold"
    assert WaitingOutcomes(tmp_path / "decisions").count() == 0
    report = take_in(tmp_path / "decisions", tmp_path / "replay", now=2e9)
    assert (report.transitions, report.skipped) == (0, [])
    assert remove(tmp_path).count == 0, "nothing is left"


def test_it_leaves_parquet(tmp_path: Path) -> None:
    with closing(ReplayBuffer(tmp_path / "replay")) as buffer:
        for number in range(40):
            group = f"customer-{number % 10}"
            observation = {"text": f"{SECRET} {group}", "number": float(number)}
            buffer.append(Transition(group=group, observation=observation, action={}))
    assert compact(tmp_path / "replay", smallest=1) is not None
    removed = remove(tmp_path)
    assert removed.count == 4
    assert groups(tmp_path).count("customer-8") == 4
    assert "customer-7" not in groups(tmp_path)
    assert b"customer-7" not in everything(tmp_path)
    assert [path.suffix for path in (tmp_path / "replay").iterdir()] == [".parquet"]


def test_it_may_be_interrupted_at_each_write(
    tmp_path: Path, log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(log, "d1", "customer-7", SECRET)
    fill(log, "d2", "customer-8", "something else")
    take_in(tmp_path / "decisions", tmp_path / "replay", now=0.0)
    writes = [0]

    def torn(write: Callable[..., int], stop: int) -> Callable[..., int]:
        def pwrite(descriptor: int, content: bytes, offset: int) -> int:
            writes[0] += 1
            if writes[0] == stop:
                write(descriptor, content[: len(content) // 2], offset)
                raise KeyboardInterrupt
            return write(descriptor, content, offset)

        return pwrite

    real, stop = os.pwrite, 0
    while True:
        stop, writes[0] = stop + 1, 0
        monkeypatch.setattr(lines_module.os, "pwrite", torn(real, stop))
        try:
            removed = remove(tmp_path)
        except KeyboardInterrupt:
            continue
        break
    assert stop > 5, "each write was interrupted once"
    assert removed.count == 2, "what an interrupted call has removed is counted"
    assert SECRET.encode() not in everything(tmp_path)
    assert groups(tmp_path) == ["customer-8", "customer-8"]
    assert not (tmp_path / "decisions" / "removing.json").exists()
    mark = json.loads((tmp_path / "decisions" / "removed.json").read_text())
    assert len(mark["group_sha256"]) == 64

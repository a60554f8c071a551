from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from infrastructure.events import (
    COMMAND_ADAPTER,
    EVENT_ADAPTER,
    EventTail,
    EventWriter,
    PrecisionState,
    SetPrecision,
)
from infrastructure.events.event import Finished, PrecisionChanged, Progress, StepStats

STATE = PrecisionState(requested="fp16", effective="fp32", reason="flag")
STATS = StepStats(step=3, applied=2, overflow=1, loss=None, loss_scale=1.0, precision="fp16")


def test_round_trip_with_the_writers_clock(tmp_path: Path):
    path = tmp_path / "events.ndjson"
    with EventWriter(path, clock=lambda: 12.5) as write:
        write(STATS)
        write(PrecisionChanged(step=3, state=STATE, loss_scale=1.0))
    stats, change = EventTail(path).read()
    assert stats == STATS.model_copy(update={"time": 12.5})
    assert stats.attempted == 3
    assert change.state == STATE


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_lacks_survive(tmp_path: Path, value):
    path = tmp_path / "events.ndjson"
    with EventWriter(path) as write:
        write(Progress(phase="train", done=1, metrics={"m": value}))
    (event,) = EventTail(path).read()
    assert repr(event.metrics["m"]) == repr(value)


def test_a_partial_last_line_waits_and_unknown_lines_are_counted(tmp_path: Path):
    path = tmp_path / "events.ndjson"
    tail = EventTail(path)
    assert list(tail.read()) == []
    line = Finished(outcome="done").model_dump_json().encode()
    path.write_bytes(b'{"kind":"from the future"}\nnot json\n' + line[:10])
    assert list(tail.read()) == []
    assert tail.malformed == 2
    with path.open("ab") as file:
        file.write(line[10:] + b"\n")
    assert [event.kind for event in tail.read()] == ["finished"]
    assert EventTail(path, tail.offset).offset == path.stat().st_size


@given(st.binary(max_size=400))
def test_no_bytes_break_the_tail(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("t") / "events.ndjson"
    path.write_bytes(data + b"\n" + STATS.model_dump_json().encode() + b"\n")
    assert list(EventTail(path).read())[-1:] == [STATS]


def test_an_endless_line_does_not_stall_the_tail(tmp_path: Path):
    path = tmp_path / "events.ndjson"
    path.write_bytes(b"x" * (3 << 20) + b"\n" + STATS.model_dump_json().encode() + b"\n")
    tail = EventTail(path)
    events = [event for _ in range(6) for event in tail.read()]
    assert events == [STATS]


def test_commands_round_trip_and_unknown_ones_are_refused():
    command = SetPrecision(state=STATE)
    assert COMMAND_ADAPTER.validate_json(command.model_dump_json()) == command
    with pytest.raises(ValidationError):
        COMMAND_ADAPTER.validate_json('{"command": "format_disk"}')
    with pytest.raises(ValidationError):
        EVENT_ADAPTER.validate_json('{"kind": "finished", "outcome": "maybe"}')


def test_neither_contract_nor_events_import_torch():
    code = "import infrastructure.events, infrastructure.agent_contract, sys; " + (
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_pipe_is_not_an_event_file(tmp_path: Path):
    os.mkfifo(tmp_path / "events.ndjson")
    with pytest.raises(OSError, match="seek"):
        list(EventTail(tmp_path / "events.ndjson").read())

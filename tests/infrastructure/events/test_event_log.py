from __future__ import annotations

import itertools
import math
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
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
    Role,
    SetPrecision,
    read_events,
)
from infrastructure.events.event import Finished, Notice, PrecisionChanged, Progress, StepStats
from infrastructure.events.event_log import LONGEST_LINE, MAX_WAITING_BYTES, NotAnEventFileError

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


def test_a_state_of_an_earlier_release_has_no_roles():
    line = (
        '{"time":1.0,"kind":"precision_changed","step":3,"loss_scale":1.0,'
        '"state":{"requested":"fp16","effective":"fp32","reason":"flag"}}'
    )
    event = EVENT_ADAPTER.validate_json(line)
    assert event.state == STATE
    assert event.state.roles == {}
    assert str(event.state) == "requested=fp16 effective=fp32 reason=flag"


def test_roles_survive_and_only_known_ones_are_accepted():
    state = replace(STATE, roles={Role.ROLLOUT: "fp32/fp32/fp32"})
    line = SetPrecision(state=state).model_dump_json()
    assert COMMAND_ADAPTER.validate_json(line).state == state
    assert str(state).endswith("reason=flag roles=rollout:fp32/fp32/fp32")
    for wrong in (line.replace("rollout", "critic"), line.replace("fp32/fp32/fp32", "fp8/x/")):
        with pytest.raises(ValidationError):
            COMMAND_ADAPTER.validate_json(wrong)


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
    path.write_bytes(b"x" * 3 * LONGEST_LINE + b"\n" + STATS.model_dump_json().encode() + b"\n")
    tail = EventTail(path)
    assert list(tail.read()) == [STATS]
    assert tail.malformed == 1
    assert tail.offset == path.stat().st_size


def test_a_line_that_is_still_growing_waits_until_it_is_too_long(tmp_path: Path):
    path = tmp_path / "events.ndjson"
    tail = EventTail(path)
    path.write_bytes(b"x" * LONGEST_LINE)
    assert list(tail.read()) == []
    assert (tail.offset, tail.malformed, tail.behind) == (0, 0, False)
    with path.open("ab") as file:
        file.write(b"x" * LONGEST_LINE)
    assert list(tail.read()) == []
    assert (tail.malformed, tail.behind) == (1, False)
    with path.open("ab") as file:
        file.write(b"x\n" + STATS.model_dump_json().encode() + b"\n")
    assert list(tail.read()) == [STATS]
    assert tail.malformed == 1, "the rest of a line does not count again"


def clock_of(*, seconds_per_look: float) -> Callable[[], float]:
    """A clock that passes *seconds_per_look* whenever it is looked at."""
    times = itertools.count(seconds_per_look, seconds_per_look)
    return lambda: next(times)


@pytest.mark.parametrize("line", [STATS.model_dump_json().encode(), b"no event", b""])
def test_reading_ends_at_the_deadline_whatever_the_lines_hold(tmp_path: Path, line: bytes):
    path = tmp_path / "events.ndjson"
    path.write_bytes((line + b"\n") * 100)
    tail = EventTail(path, clock=clock_of(seconds_per_look=1.0))
    offsets = []
    while not offsets or tail.behind:
        list(tail.read(deadline=10.0))
        offsets.append(tail.offset)
        assert len(offsets) < 100
    width = len(line) + 1
    assert offsets[:3] == [10 * width, 11 * width, 12 * width], "at least one line each time"
    assert offsets[-1] == 100 * width


def test_reading_ends_at_the_deadline_within_an_endless_line(tmp_path: Path):
    path = tmp_path / "events.ndjson"
    path.touch()
    os.truncate(path, 1 << 40)
    tail = EventTail(path, clock=clock_of(seconds_per_look=1.0))
    assert list(tail.read(deadline=3.0)) == []
    assert tail.behind
    assert 2 * LONGEST_LINE < tail.offset < 5 * LONGEST_LINE
    assert tail.malformed == 1


def test_reading_ends_at_the_given_end(tmp_path: Path):
    path = tmp_path / "events.ndjson"
    line = STATS.model_dump_json().encode() + b"\n"
    path.write_bytes(3 * line)
    tail = EventTail(path, len(line), end=2 * len(line))
    assert list(tail.read()) == [STATS]
    assert not tail.behind


def test_a_backlog_beyond_the_longest_is_skipped(tmp_path: Path):
    path = tmp_path / "events.ndjson"
    path.touch()
    os.truncate(path, 1 << 40)  # takes no space: reading it would take hours
    with path.open("ab") as file:
        file.write(b"\n" + STATS.model_dump_json().encode() + b"\n")
    tail = EventTail(path, longest_backlog=1 << 20)
    assert list(tail.read()) == [STATS]
    assert tail.skipped_bytes > (1 << 40) - (1 << 20)
    assert tail.malformed == 0, "the rest of the line in which it begins to read is no event"
    with path.open("ab") as file:
        file.write(STATS.model_dump_json().encode() + b"\n")
    assert list(tail.read()) == [STATS]


def test_what_is_appended_after_the_end_is_not_read(tmp_path: Path):
    path = tmp_path / "events.ndjson"
    path.write_bytes(STATS.model_dump_json().encode() + b"\n")
    tail = EventTail(path)
    tail.end_here()
    assert tail.behind
    with path.open("ab") as file:
        file.write(STATS.model_dump_json().encode() + b"\n")
    assert list(tail.read()) == [STATS]
    assert not tail.behind
    assert list(tail.read()) == []


def test_the_end_of_a_missing_file_is_reached(tmp_path: Path):
    tail = EventTail(tmp_path / "events.ndjson")
    tail.end_here()
    assert list(tail.read()) == []
    assert not tail.behind


def test_commands_round_trip_and_unknown_ones_are_refused():
    command = SetPrecision(state=STATE)
    assert COMMAND_ADAPTER.validate_json(command.model_dump_json()) == command
    with pytest.raises(ValidationError):
        COMMAND_ADAPTER.validate_json('{"command": "format_disk"}')
    with pytest.raises(ValidationError):
        EVENT_ADAPTER.validate_json('{"kind": "finished", "outcome": "maybe"}')


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Let no file grow beyond *size* bytes: the write that would is short, the next is refused."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 200)), min_size=1, max_size=20))
def test_an_event_without_room_waits_and_none_is_lost_torn_or_reordered(tmp_path_factory, rooms):
    """Before each event the disk has room for so many bytes more; the event is this long."""
    path = tmp_path_factory.mktemp("t") / "events.ndjson"
    tail, seen = EventTail(path), []
    with EventWriter(path) as write:
        for number, (room, length) in enumerate(rooms):
            with files_of_at_most(path.stat().st_size + room):
                write(Progress(phase="train", done=number, unit="u" * length))
            assert write.waiting_bytes == 0 or isinstance(write.error, OSError)
            seen += [event.done for event in tail.read()]
        assert write.flush()
        assert (write.waiting_bytes, write.error) == (0, None)
    assert seen + [event.done for event in tail.read()] == list(range(len(rooms)))
    assert tail.malformed == 0


def test_memory_is_bounded_and_what_was_dropped_is_counted(tmp_path: Path):
    path = tmp_path / "events.ndjson"
    with EventWriter(path) as write:
        with files_of_at_most(0):
            while not write.is_crowded:
                write(STATS)
            assert write.waiting_bytes > MAX_WAITING_BYTES
            for number in range(10_000):
                write(Notice(event=f"n{number}", fields={"text": "x" * 500}))
            write(STATS)
            assert write.waiting_bytes < 4 * MAX_WAITING_BYTES + 5000
            assert 0 < write.dropped < 10_000
            dropped = write.dropped
            assert not write.flush()
        assert write.flush()
    *_, last, count = read_events(path)
    assert last == STATS.model_copy(update={"time": last.time})
    assert (count.event, count.fields["events"]) == ("events_dropped", str(dropped))


def test_a_line_that_an_earlier_writer_left_torn_costs_no_event(tmp_path: Path):
    path = tmp_path / "events.ndjson"
    path.write_bytes(b'{"kind":"step_st')
    with EventWriter(path) as write:
        write(STATS)
    tail = EventTail(path)
    assert [event.kind for event in tail.read()] == ["step_stats"]
    assert tail.malformed == 1


def test_neither_contract_nor_events_import_torch():
    code = "import infrastructure.events, infrastructure.agent_contract, sys; " + (
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def link_to_zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link_to_a_file(path: Path) -> None:
    path.with_name("other").touch()
    path.symlink_to(path.with_name("other"))


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, link_to_zeros, link_to_a_file])
def test_only_a_regular_file_is_read(tmp_path: Path, make: Callable[[Path], None]):
    path = tmp_path / "events.ndjson"
    make(path)
    with pytest.raises(NotAnEventFileError, match="regular file"):
        list(EventTail(path).read())
    with pytest.raises(NotAnEventFileError):
        list(read_events(path))


def test_a_socket_is_not_an_event_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    path = Path("events.ndjson")  # the system allows 108 characters
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))
    with pytest.raises(NotAnEventFileError):
        list(EventTail(path).read())

"""The daemon's log: kept in two files of a bounded size, read once, turned into records."""

from pathlib import Path

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from genesis_fp16.daemon import telemetry
from genesis_fp16.daemon.telemetry import LogCopy
from genesis_fp16.domain.telemetry import FOLDER, LOG_FILE, span_id, trace_id
from genesis_fp16.telemetry.log_lines import read_lines, record_of
from genesis_fp16.telemetry.position import Position, read_position

SCOPE = InstrumentationScope("test")


class Reader:
    def __init__(self, home: Path) -> None:
        self.path, self.position, self.lost = home / FOLDER / LOG_FILE, Position(ended_at=0.0), 0

    def events(self) -> list[str]:
        """Events of all lines that were not read yet."""
        events: list[str] = []
        while True:
            read = read_lines(self.path, self.position)
            at = (self.position.log_head, self.position.log_offset)
            if (read.head, read.offset) == at:
                return events
            self.lost += read.lost
            self.position.log_head, self.position.log_offset = read.head, read.offset
            records = [record_of(line, Resource({}), SCOPE) for line in read.lines]
            events += [str(record.log_record.body) for record in records]


def test_lines_before_the_home_is_known_and_across_turned_files_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "MOST_LOG_BYTES", 400)
    copy, reader = LogCopy(), Reader(tmp_path)
    copy(None, "info", {"event": "early", "level": "info"})
    copy.open(tmp_path)
    read: list[str] = []
    for number in range(30):  # the file is turned over every few lines
        copy(None, "info", {"event": f"line{number}", "level": "info"})
        if number % 3 == 0:
            read += reader.events()
    assert read + reader.events() == ["early", *(f"line{number}" for number in range(30))]
    assert reader.lost == 0
    for number in range(60):
        copy(None, "info", {"event": f"more{number}", "level": "info"})
    last = reader.events()
    assert (reader.lost, last[-1]) == (1, "more59"), "what was turned over twice is lost, and told"
    copy.close()
    copy(None, "info", {"event": "after", "level": "info"})  # as when the disk is full


def test_a_line_becomes_a_record_of_its_run_and_a_damaged_one_its_text() -> None:
    line = b'{"event": "run_ended", "level": "error", "time": 1.5, "run_id": "r1", "steps": 3}'
    record = record_of(line, Resource({}), SCOPE).log_record
    assert (record.timestamp, record.severity_text, record.body) == (
        1_500_000_000,
        "ERROR",
        "run_ended",
    )
    assert (record.trace_id, record.span_id) == (trace_id("r1"), span_id("r1"))
    assert record.attributes == {"genesis.run.id": "r1", "steps": 3}
    odd = record_of(
        b'{"event": "a", "x": "\\ud800b", "n": 9223372036854775808}', Resource({}), SCOPE
    )
    assert odd.log_record.attributes == {"x": "b", "n": "9223372036854775808"}
    assert record_of(b'{"cut', Resource({}), SCOPE).log_record.body == '{"cut'


def test_a_position_survives_and_a_damaged_one_begins_now(tmp_path: Path) -> None:
    position = Position(ended_at=10_000.0)
    position.add("old", 1.0)
    position.add("new", 10_500.0)
    position.save(tmp_path)
    assert read_position(tmp_path, 0.0).sent == {"new": 10_500.0}
    (tmp_path / ".position.json").write_text("{")
    assert read_position(tmp_path, 7.0) == Position(ended_at=7.0)

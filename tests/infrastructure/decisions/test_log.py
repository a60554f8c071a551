"""The log of decisions: durable batches, torn tails, full disks, one writer."""

import os
import resource
import signal
from contextlib import closing
from pathlib import Path

import pytest

from infrastructure.decisions import (
    DecisionLog,
    LogBusyError,
    LogWriteError,
    Place,
    read_records,
)
from infrastructure.decisions.log import segment_path, segments
from infrastructure.decisions.records import BEGINNING


def record(number: int) -> dict[str, object]:
    return {"kind": "transition", "id": f"t{number}", "text": "ü" * 50}


def ids(folder: Path, start: Place = BEGINNING) -> list[str]:
    return [found["id"] for _, _, found in read_records(folder, start)]


def test_records_are_read_back_from_any_place(tmp_path: Path) -> None:
    with closing(DecisionLog(tmp_path, segment_bytes=300)) as log:
        places = [log.append([record(number)])[0] for number in range(6)]
        assert [log.read(place)["id"] for place in places] == [f"t{n}" for n in range(6)]
    assert len(segments(tmp_path)) > 1
    assert ids(tmp_path, places[4]) == ["t4", "t5"]
    ends = [end for _, end, _ in read_records(tmp_path)]
    assert ids(tmp_path, ends[-1]) == []


def test_a_torn_line_is_left_out_and_cut_off_by_the_next_writer(tmp_path: Path) -> None:
    with closing(DecisionLog(tmp_path)) as log:
        log.append([record(0), record(1)])
    with segment_path(tmp_path, 1).open("ab") as file:
        file.write(b'{"v":1,"crc":"00')
    assert ids(tmp_path) == ["t0", "t1"]
    with closing(DecisionLog(tmp_path)) as log:
        log.append([record(2)])
    assert ids(tmp_path) == ["t0", "t1", "t2"]
    assert segments(tmp_path) == [1]


def test_an_altered_line_costs_that_line(tmp_path: Path) -> None:
    with closing(DecisionLog(tmp_path)) as log:
        place = log.append([record(0), record(1), record(2)])[1]
    path = segment_path(tmp_path, 1)
    content = bytearray(path.read_bytes())
    content[place.offset + 60] ^= 1
    path.write_bytes(content)
    damage: list[int] = []
    found = read_records(tmp_path, on_damage=lambda _path, offset, _reason: damage.append(offset))
    assert [entry["id"] for _, _, entry in found] == ["t0", "t2"]
    assert damage == [place.offset]


def test_a_full_disk_keeps_what_was_there_and_none_of_the_batch(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: the write is cut short."""
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with closing(DecisionLog(tmp_path)) as log:
            log.append([record(0)])
            size = segment_path(tmp_path, 1).stat().st_size
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, hard))
            with pytest.raises(LogWriteError, match="acknowledged is kept"):
                log.append([record(1)])
            assert segment_path(tmp_path, 1).stat().st_size == size
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            log.append([record(2)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert ids(tmp_path) == ["t0", "t2"]


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    with closing(DecisionLog(tmp_path)) as log, closing(DecisionLog(tmp_path)) as other:
        log.append([record(0)])
        with pytest.raises(LogBusyError):
            other.append([record(1)])
        log.close()
        other.append([record(1)])
    assert ids(tmp_path) == ["t0", "t1"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LogWriteError, match=os.strerror(20)):
        DecisionLog(tmp_path / "file" / "decisions").append([record(0)])

import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from infrastructure.agent_contract.transition import Transition
from infrastructure.trajectories import (
    BufferSnapshot,
    ReplayBuffer,
    ReplayBufferWriteError,
    segments,
)


def _transition(number, text=""):
    return Transition(group=f"g{number % 3}", observation={"n": number, "text": text}, action={})


def _numbers(transitions):
    return [transition.observation["n"] for transition in transitions]


def _writer(folder, body):
    """Start a process that has a buffer of *folder* and the functions of this test."""
    program = """
import sys
from pathlib import Path
from infrastructure.agent_contract.transition import Transition
from infrastructure.trajectories import ReplayBuffer
buffer = ReplayBuffer(Path(sys.argv[1]))
def record(number, text=""):
    buffer.append(Transition(group="g", observation={"n": number, "text": text}, action={}))
"""
    return subprocess.Popen(
        [sys.executable, "-c", program + textwrap.dedent(body), str(folder)],
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def skips():
    return []


@pytest.fixture
def buffer(tmp_path, skips):
    return ReplayBuffer(tmp_path / "replay", on_skip=lambda *skip: skips.append(skip))


@pytest.fixture
def segment(buffer, tmp_path):
    """The only segment, with ten transitions."""
    for number in range(10):
        buffer.append(_transition(number))
    (path,) = (tmp_path / "replay").iterdir()
    return path


def test_an_empty_buffer_reads_empty(buffer):
    assert list(buffer.read()) == []
    assert len(buffer.read()) == 0


def test_a_buffer_recorded_by_a_former_version_is_read_and_written_alike(skips, tmp_path):
    """Written by commit 5f38b5b."""
    recorded = Path(__file__).parent / "recorded_version_1"
    former = ReplayBuffer(recorded, on_skip=lambda *skip: skips.append(skip))
    transitions = list(former.read())
    assert transitions == [
        Transition(
            group="größe\n",
            observation={"x": (1.5, -2.0), "code": "bug\ud800", "n": 3, "flag": True},
            action={"kind": ("a", "b")},
            reward=-0.25,
            next_observation={"x": (math.inf, 0.0)},
            terminated=True,
            propensity=0.125,
            info={"why": "test"},
        ),
        Transition(group="g", observation={}, action={}),
    ]
    assert skips == []
    again = ReplayBuffer(tmp_path / "again")
    for transition in transitions:
        again.append(transition)
    [before], [now] = (list(folder.iterdir()) for folder in (recorded, tmp_path / "again"))
    assert now.read_bytes() == before.read_bytes()


def test_reads_in_recorded_order_across_writers_one_after_the_other(buffer, tmp_path):
    for start in (0, 5, 10):
        writer = ReplayBuffer(tmp_path / "replay")
        for number in range(start, start + 5):
            writer.append(_transition(number))
        writer.close()
    assert _numbers(buffer.read()) == list(range(15))
    assert len(buffer.read()) == 15


def test_a_closed_writer_begins_a_new_segment(buffer, segment):
    buffer.close()
    buffer.append(_transition(10))
    assert _numbers(buffer.read()) == list(range(11))
    assert len(list(segment.parent.iterdir())) == 2


def test_a_snapshot_gives_the_same_data_after_more_was_written(buffer, segment, tmp_path):
    snapshot = BufferSnapshot.from_json(json.loads(json.dumps(buffer.snapshot().to_json())))
    buffer.append(_transition(99))
    other = ReplayBuffer(tmp_path / "replay")
    other.append(_transition(100))
    assert _numbers(buffer.read(snapshot)) == list(range(10))
    assert _numbers(buffer.read()) == [*range(10), 99, 100]


@pytest.mark.parametrize("value", [None, [], {"a": -1}, {"../a": 3}, {"a": "3"}, {1: 3}])
def test_an_invalid_snapshot_is_refused(value):
    with pytest.raises(ValueError, match="segment names"):
        BufferSnapshot.from_json(value)


def test_every_cut_of_the_last_record_costs_only_that_record(buffer, segment, skips):
    data = segment.read_bytes()
    last = data.rstrip(b"\n").rindex(b"\n") + 1
    for end in range(last + 1, len(data)):
        segment.write_bytes(data[:end])
        skips.clear()
        assert _numbers(buffer.read()) == list(range(9))
        assert [(path, offset) for path, offset, _ in skips] == [(segment, last)]


def test_a_torn_record_in_the_middle_is_skipped_and_named(buffer, segment, skips):
    lines = segment.read_bytes().splitlines(keepends=True)
    torn = lines[4][: len(lines[4]) // 2]
    segment.write_bytes(b"".join(lines[:4]) + torn + b"\n" + b"".join(lines[5:]))
    assert _numbers(buffer.read()) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert [skip[:2] for skip in skips] == [(segment, sum(map(len, lines[:4])))]
    assert "torn" in skips[0][2]


def test_a_flipped_bit_is_skipped_and_named(buffer, segment, skips):
    data = bytearray(segment.read_bytes())
    data[data.index(b'"n":4') + 4] ^= 1  # 4 becomes 5: still valid JSON
    segment.write_bytes(data)
    assert _numbers(buffer.read()) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert "checksum" in skips[0][2]


def test_a_segment_that_has_gone_is_named_and_the_rest_read(buffer, segment, skips, tmp_path):
    other = ReplayBuffer(tmp_path / "replay")
    other.append(_transition(10))
    snapshot = buffer.snapshot()
    segment.unlink()
    assert _numbers(buffer.read(snapshot)) == [10]
    assert skips[0][0] == segment


def test_a_segment_that_cannot_be_read_is_named_and_the_rest_read(buffer, skips, tmp_path):
    buffer.append(_transition(0))
    unreadable = tmp_path / "replay" / "00000009-1-x.jsonl"
    unreadable.mkdir()  # unreadable for root too, unlike another user's file
    assert _numbers(buffer.read()) == [0]
    assert skips == [(unreadable, 0, "cannot be read: Is a directory")]


def test_a_segment_that_shrank_is_named(buffer, segment, skips):
    snapshot = buffer.snapshot()
    segment.write_bytes(b"".join(segment.read_bytes().splitlines(keepends=True)[:3]))
    assert _numbers(buffer.read(snapshot)) == [0, 1, 2]
    assert "since the snapshot" in skips[0][2]


@pytest.mark.process
def test_a_writer_killed_mid_write_costs_at_most_one_record(buffer, skips, tmp_path):
    written = []
    for _ in range(3):
        writer = _writer(
            tmp_path / "replay",
            """
            number = 0
            while True:
                record(number, "x" * 4_000_000)
                number += 1
                print(number, flush=True)
            """,
        )
        writer.stdout.readline()
        time.sleep(0.02)
        os.kill(writer.pid, signal.SIGKILL)
        written.append(int(["1", *writer.communicate(timeout=300)[0].split()][-1]))
    seen, number = [], -1
    for transition in buffer.read():  # three runs of 0, 1, 2 ...
        if transition.observation["n"] == 0:
            seen.append(0)
        seen[-1] += 1
        number = transition.observation["n"]
        assert number == seen[-1] - 1
        assert transition.observation["text"] == "x" * 4_000_000
    assert all(count >= known for count, known in zip(seen, written, strict=True))
    assert len(skips) <= 3


@pytest.mark.process
def test_many_writers_and_a_reader_at_once(buffer, skips, tmp_path):
    writers = [
        _writer(
            tmp_path / "replay",
            f"""
            for number in range({start}, {start} + 500):
                record(number, "y" * (number % 300))
            """,
        )
        for start in (0, 1000, 2000, 3000)
    ]
    while any(writer.poll() is None for writer in writers):
        snapshot = buffer.snapshot()
        first = _numbers(buffer.read(snapshot))
        assert _numbers(buffer.read(snapshot)) == first
    assert [writer.wait(timeout=300) for writer in writers] == [0, 0, 0, 0]
    skips.clear()
    numbers = _numbers(buffer.read())
    assert sorted(numbers) == [n for s in (0, 1000, 2000, 3000) for n in range(s, s + 500)]
    assert skips == []
    for writer in writers:
        writer.stdout.close()


@pytest.mark.process
def test_a_full_disk_is_reported_with_path_and_remedy_and_loses_nothing_recorded(buffer, tmp_path):
    writer = _writer(
        tmp_path / "replay",
        """
        import resource
        record(0)
        size = next(Path(sys.argv[1]).iterdir()).stat().st_size
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        for number, limit in ((1, size + 50), (2, size + 50)):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
            try:
                record(number, "z" * 100)
            except OSError as error:
                print(type(error).__name__, error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        record(3)
        """,
    )
    output, _ = writer.communicate(timeout=300)
    assert writer.returncode == 0
    first, second = output.splitlines()
    (segment,) = (tmp_path / "replay").iterdir()
    for line in (first, second):
        assert line.startswith(f"ReplayBufferWriteError cannot record a transition in {segment}")
        assert "free space" in line
    assert " 50 of " in first
    assert _numbers(buffer.read()) == [0, 3]


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ReplayBufferWriteError, match=f"{tmp_path}/file.*is a file"):
        ReplayBuffer(tmp_path / "file" / "replay").append(_transition(0))


def test_the_buffer_needs_no_torch():
    program = "import sys, infrastructure.trajectories; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_newest_are_read_without_the_segments_before_them(buffer, segment, skips):
    buffer.close()
    for number in range(10, 15):
        buffer.append(_transition(number))
    view = buffer.read()
    assert _numbers(reversed(view)) == list(range(14, -1, -1))
    segment.unlink()
    newest = reversed(view)
    assert [next(newest).observation["n"] for _ in range(5)] == [14, 13, 12, 11, 10]
    assert skips == []
    assert _numbers(newest) == []
    assert [path for path, _, _ in skips] == [segment]


def test_a_long_segment_is_read_backwards_in_ranges(buffer, monkeypatch):
    monkeypatch.setattr(segments, "_RANGE_BYTES", 700)
    for number in range(50):
        buffer.append(_transition(number, "x" * number))
    buffer.close()
    view = buffer.read()
    assert _numbers(reversed(view)) == list(range(49, -1, -1))
    assert _numbers(view) == list(range(50))


def test_the_number_of_records_is_bounded_without_reading_them(buffer, segment):
    buffer.close()
    segment.write_bytes(segment.read_bytes().replace(b'"n":4', b'"n":5', 1))
    buffer.append(_transition(10))
    buffer.close()
    view = buffer.read()
    assert view.at_most() == 11
    assert len(view) == 10
    assert view.at_most() == 10


def test_an_iteration_to_the_end_counts_the_transitions(buffer, segment):
    buffer.close()
    view = buffer.read()
    assert len(list(view)) == 10
    segment.unlink()
    assert len(view) == 10

"""Reports on disk: damage, full disks, several processes."""

from __future__ import annotations

import itertools
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from genesis_client.spool import (
    MOST_BATCH,
    MOST_LINE,
    MOST_MEMORY,
    Spool,
    SpoolFile,
    make_line,
    parse_line,
)
from hypothesis import given
from hypothesis import strategies as st

TAILS = st.sampled_from(["transitions", "choices", "decisions/a.b_c-1/outcome"])
REPORTS = st.dictionaries(st.text(), st.text() | st.floats(allow_nan=False)).map(
    lambda report: json.dumps(report).encode()
)


def drain(spool: Spool | SpoolFile) -> list[tuple[str, bytes]]:
    """All reports, taken as a sender takes them."""
    taken = []
    while batch := spool.head() if isinstance(spool, Spool) else spool.next_batch():
        taken += [(batch.tail, report) for report in batch.reports]
        if isinstance(spool, Spool):
            spool.done()
    return taken


def locked(path: Path) -> SpoolFile:
    file = SpoolFile.open_locked(path)
    assert file is not None
    return file


@given(TAILS, REPORTS)
def test_a_line_is_read_as_it_was_written(tail: str, report: bytes) -> None:
    line = make_line(tail, report)
    assert line.count(b"\n") == 1
    assert parse_line(line[:-1]) == (tail, report)


@given(st.binary())
def test_any_bytes_are_a_line_or_not(line: bytes) -> None:
    found = parse_line(line)
    assert found is None or make_line(*found) == line + b"\n"


@given(st.lists(st.tuples(TAILS, REPORTS), max_size=20), st.data())
def test_damage_costs_the_lines_that_it_touches(
    tmp_path_factory: pytest.TempPathFactory, reports: list[tuple[str, bytes]], data: st.DataObject
) -> None:
    lines = [make_line(tail, report) for tail, report in reports]
    content = b"".join(lines)
    start = data.draw(st.integers(0, len(content)))
    end = data.draw(st.integers(start, min(start + 200, len(content))))
    wrong = data.draw(st.binary(max_size=200))
    path = tmp_path_factory.mktemp("s") / "0.spool"
    path.write_bytes(content[:start] + wrong + content[end:])
    file = locked(path)
    taken = drain(file)
    file.empty_if_read()
    file.close()
    assert path.stat().st_size == 0
    offset, untouched = 0, []
    for line, report in zip(lines, reports, strict=True):
        if offset + len(line) <= start or offset > end:
            untouched.append(report)
        offset += len(line)
    expected = iter(taken)
    assert all(report in expected for report in untouched)  # in their order


def test_reports_for_one_path_are_taken_together(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 1 << 20)
    for number in range(MOST_BATCH + 5):
        spool.append("transitions", b"%d" % number)
    spool.append("choices", b"{}")
    spool.append("decisions/a/outcome", b"{}")
    spool.append("decisions/b/outcome", b"{}")
    sizes = []
    while batch := spool.head():
        assert spool.head() is batch
        sizes.append((batch.tail, len(batch.reports)))
        spool.done()
    assert sizes == [
        ("transitions", MOST_BATCH),
        ("transitions", 5),
        ("choices", 1),
        ("decisions/a/outcome", 1),
        ("decisions/b/outcome", 1),
    ]
    assert spool.waiting_bytes == 0
    spool.close()


def test_a_full_spool_drops_what_comes_last(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 1000)
    kept = [spool.append("transitions", b"%d" % number) for number in range(100)]
    assert kept == sorted(kept, reverse=True)
    assert (kept.count(True), spool.dropped) == (42, 58)
    assert not spool.append("transitions", b"x" * MOST_LINE)
    assert [int(report) for _, report in drain(spool)] == list(range(42))
    assert spool.append("transitions", b"again")
    spool.close()


def test_a_file_without_the_end_of_a_line_damages_no_later_report(tmp_path: Path) -> None:
    (tmp_path / "0.spool").write_bytes(b"x" * (2 * MOST_LINE + 1))
    spool = Spool(tmp_path, 1 << 30)
    spool.append("choices", b"1")
    assert drain(spool) == [("choices", b"1")]
    assert spool.damaged == 1
    spool.close()


def test_a_torn_line_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "0.spool"
    path.write_bytes(make_line("choices", b"1") + make_line("choices", b"2")[:-3])
    spool = Spool(tmp_path, 1 << 20)
    spool.append("choices", b"3")
    assert drain(spool) == [("choices", b"1"), ("choices", b"3")]
    assert spool.damaged == 1
    spool.close()


def test_a_line_without_end_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "0.spool"
    path.write_bytes(b"x" * (2 * MOST_LINE) + b"\n" + make_line("choices", b"1"))
    file = locked(path)
    assert drain(file) == [("choices", b"1")]
    assert file.damaged >= 1
    file.close()


def test_each_spool_has_a_file_and_finds_those_that_were_left(tmp_path: Path) -> None:
    first, second, third = (Spool(tmp_path, 1 << 20) for _ in range(3))
    first.append("choices", b"1")
    second.append("choices", b"2")
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["0.spool", "1.spool"]
    assert [*third.abandoned()] == []
    first.close()
    assert [drain(file) for file in third.abandoned()] == [[("choices", b"1")]]
    third.append("choices", b"3")
    assert drain(third) == [("choices", b"1"), ("choices", b"3")]
    second.close()
    third.close()


@pytest.mark.parametrize("place", ["file", "link"])
def test_memory_holds_what_the_disk_does_not_take(tmp_path: Path, place: str) -> None:
    folder = tmp_path / "folder"
    if place == "file":
        folder.write_text("in the way")
    else:
        folder.symlink_to(tmp_path / "nowhere" / "beyond")
        (tmp_path / "nowhere").write_text("in the way")
    spool = Spool(folder, 1 << 20)
    assert spool.append("choices", b"1")
    assert spool.append("choices", b"2")
    folder.unlink()
    assert spool.append("choices", b"3"), "behind those before it"
    assert not spool.append("choices", b"x" * MOST_MEMORY)
    assert drain(spool) == [("choices", b"1"), ("choices", b"2"), ("choices", b"3")]
    assert not folder.exists()
    assert spool.append("choices", b"4")
    assert folder.exists()
    assert spool.waiting_bytes > 0
    assert spool.dropped == 1
    spool.close()


def test_a_full_disk_leaves_no_half_line(tmp_path: Path) -> None:
    """A limit on the size of files stops writes as a full disk does."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            spool = Spool(tmp_path, 1 << 20)
            kept = [spool.append("choices", b"%020d" % number) for number in range(10)]
            lines = (tmp_path / "0.spool").read_bytes().splitlines()
            assert len(lines) == 2
            assert all(map(parse_line, lines))
            assert all(kept)
            assert [int(report) for _, report in drain(spool)] == list(range(10))
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.process
def test_processes_that_are_killed_within_writes_lose_at_most_one_line(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from genesis_client.spool import Spool
spool = Spool(Path(sys.argv[1]), 1 << 30)
sys.stdout.write("begun\\n")
sys.stdout.flush()
number = 0
while True:
    spool.append("transitions", b"%d" % number + b" " * 3000)
    number += 1
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for _ in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path)], env=environment, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            process.kill()
    file = locked(tmp_path / "0.spool")
    numbers = [int(report) for _, report in drain(file)]
    assert file.damaged <= 1
    assert numbers.count(0) <= 5
    pairs = itertools.pairwise(numbers)
    assert all(after in {before + 1, 0} for before, after in pairs)
    file.close()

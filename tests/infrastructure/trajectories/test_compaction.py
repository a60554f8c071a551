import io
import itertools
import math
import signal
import subprocess
import sys
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infrastructure.agent_contract.agent import MisconfiguredError
from infrastructure.agent_contract.transition import Transition
from infrastructure.trajectories import BufferSnapshot, ReplayBuffer, parquet_segments
from infrastructure.trajectories.compaction import compact
from infrastructure.trajectories.parquet_segments import find_compacted, restored_lines

pytest.importorskip("pyarrow", reason="installed with the extra dev")


def _transition(number, **changes):
    fields = {
        "group": f"g{number // 7}",
        "observation": {"x": number * 0.1, "vector": (number * 1.0, math.pi), "name": f"n{number}"},
        "action": {"move": number % 3, "up": number % 2 == 0},
        "reward": -0.0 if number % 2 else float(number),
        "next_observation": {"tokens": ("a", "b") if number % 2 else ()},
        "terminated": number % 7 == 6,
        "propensity": None if number % 2 else 0.25,
        "info": {},
    }
    return Transition(**(fields | changes))


ODD = [
    {"observation": {"x": 1}},  # an integer among floats
    {"observation": {"x": math.nan, "name": "é\ud800"}},
    {"observation": {"name": "first", "x": math.inf}},  # another order
    {"observation": {"x": 0.1, "new": 5}},
    {"observation": {"x": (1.0, 2)}},
    {"action": {"move": 1 << 80}},
    {"action": {"move": "left"}},
    {"group": "\udcff", "info": {"note": "none"}},
    {"observation": {"": 1.5}, "action": {"move": True}},
    {"observation": {"vector": ()}, "next_observation": {"tokens": "one"}},
]


def _record(folder, rows):
    with closing(ReplayBuffer(folder)) as buffer:
        for row in rows:
            buffer.append(row)


@pytest.fixture
def folder(tmp_path):
    """Three closed segments; rows of all kinds, and altered and torn records."""
    folder = tmp_path / "replay"
    for start in (0, 40, 80):
        changes = itertools.cycle([{}, *ODD, {}]) if start else itertools.repeat({})
        _record(folder, [_transition(start + n, **next(changes)) for n in range(40)])
    first, second, third = sorted(folder.iterdir())
    first.write_bytes(first.read_bytes().replace(b'"n3"', b'"m3"'))
    second.write_bytes(second.read_bytes() + b'{"v":1,"crc":"torn')
    third.write_bytes(third.read_bytes() + b"\n")
    return folder


def _compact(folder, **limits):
    return compact(folder, **{"smallest": 0, **limits})


def _state(folder):
    """All that a reader sees: snapshot, transitions, backwards, and what is skipped when."""
    skips = []
    buffer = ReplayBuffer(folder, on_skip=lambda *skip: skips.append(skip))
    snapshot = buffer.snapshot()
    view = buffer.read(snapshot)
    rows = [repr(row) for row in iter(view)]
    forward, backward = list(skips), [repr(row) for row in reversed(view)]
    return snapshot, rows, forward, backward, view.at_most() >= len(rows), buffer.digest(snapshot)


def _copies(buffer, snapshot):
    copies = []
    for name, length in snapshot.lengths.items():
        copies.append(io.BytesIO())
        assert buffer.copy_segment(name, length, copies[-1]) == length
    return [copy.getvalue() for copy in copies]


def test_readers_see_no_difference(folder):
    contents = {path.name: path.read_bytes() for path in folder.iterdir()}
    before = _state(folder)
    assert len(before[1]) == 119
    assert len(before[2]) == 3  # altered, torn, blank
    done = _compact(folder)
    assert done.segments == 3
    assert done.bytes_before == sum(map(len, contents.values()))
    (path,) = folder.iterdir()
    assert path.suffix == ".parquet"
    assert done.bytes_after == path.stat().st_size < done.bytes_before
    assert _state(folder) == before
    for name, (_, segment) in find_compacted(folder, None).items():
        assert b"".join(restored_lines(path, segment)) == contents[name]


def test_a_snapshot_from_before_reads_the_same(folder):
    buffer = ReplayBuffer(folder)
    snapshot = buffer.snapshot()
    name = max(snapshot.lengths)
    lines = (folder / name).read_bytes().splitlines(keepends=True)
    short = BufferSnapshot(lengths={**snapshot.lengths, name: sum(map(len, lines[:5]))})
    view = buffer.read(snapshot)
    wanted = [list(map(repr, iter(buffer.read(which)))) for which in (snapshot, short)]
    digests = [buffer.digest(which) for which in (snapshot, short)]
    copies = [_copies(buffer, which) for which in (snapshot, short)]
    assert len(wanted[1]) == 84
    _compact(folder)
    assert list(map(repr, iter(view))) == wanted[0]
    assert [list(map(repr, iter(buffer.read(which)))) for which in (snapshot, short)] == wanted
    assert [buffer.digest(which) for which in (snapshot, short)] == digests
    assert [_copies(buffer, which) for which in (snapshot, short)] == copies


def test_further_transitions_follow_those_in_parquet(folder):
    before = _state(folder)[1]
    _compact(folder)
    _record(folder, [_transition(500)])
    assert _state(folder)[1] == [*before, repr(_transition(500))]
    numbers = sorted(path.name[:8] for path in folder.iterdir())
    assert numbers == ["00000003", "00000004"]
    assert _compact(folder).segments == 1
    assert _state(folder)[1] == [*before, repr(_transition(500))]
    assert _compact(folder) is None


def test_a_group_of_rows_is_no_border(folder, monkeypatch):
    monkeypatch.setattr(parquet_segments, "_GROUP_ROWS", 7)
    before = _state(folder)
    _compact(folder)
    assert _state(folder) == before


def test_an_open_segment_stays(folder):
    with closing(ReplayBuffer(folder)) as buffer:
        buffer.append(_transition(1))
        assert _compact(folder).segments == 3
        buffer.append(_transition(2))
        assert sorted(path.suffix for path in folder.iterdir()) == [".jsonl", ".parquet"]
    assert _compact(folder).segments == 1


def test_segments_of_other_programs_stay(folder):
    """They are replaced whole, without a lock."""
    first = min(folder.iterdir())
    first.rename(first.with_name("00000001-decisions-00000001.jsonl"))
    before = _state(folder)
    assert _compact(folder).segments == 2
    assert len(list(folder.glob("*.jsonl"))) == 1
    assert _state(folder) == before


def test_too_little_and_too_much_stay(folder):
    assert compact(folder) is None
    sizes = sorted(path.stat().st_size for path in folder.iterdir())
    assert _compact(folder, largest=sizes[0] - 1) is None
    assert len(list(folder.iterdir())) == 3
    assert _compact(folder, largest=sum(sizes) - 1).segments == 2


def test_without_the_folder_there_is_nothing_to_do(tmp_path):
    assert _compact(tmp_path / "replay") is None


def test_an_interruption_changes_nothing(folder):
    before = sorted(folder.iterdir())

    def poll():
        raise InterruptedError

    with pytest.raises(InterruptedError):
        compact(folder, poll, smallest=0)
    assert sorted(folder.iterdir()) == before


def test_a_damaged_parquet_file_is_told(folder):
    _compact(folder)
    (path,) = folder.iterdir()
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 255
    path.write_bytes(bytes(content))
    skips = []
    buffer = ReplayBuffer(folder, on_skip=lambda *skip: skips.append(skip))
    assert list(iter(buffer.read())) == list(reversed(buffer.read())) == []
    assert any("cannot be read" in reason for _, _, reason in skips)
    path.write_bytes(b"PAR1")
    skips = []
    ReplayBuffer(folder, on_skip=lambda *skip: skips.append(skip)).snapshot()
    assert "cannot be read" in skips[0][2]


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (b"action.up", b"action.ud", "damaged"),
        (b'"name": "string"', b'"name": "sprint"', "damaged"),
        (b'"action": {', b'"action" {:', "damaged"),
        (b'"rows": 40,', b'"rows": 30,', "rows"),
    ],
)
def test_a_damaged_description_is_told(folder, before, after, told):
    """Parquet has no checksum of its footer."""
    _compact(folder)
    (path,) = folder.iterdir()
    content = path.read_bytes()
    assert before in content
    path.write_bytes(content.replace(before, after))
    skips = []
    buffer = ReplayBuffer(folder, on_skip=lambda *skip: skips.append(skip))
    assert list(iter(buffer.read())) == list(reversed(buffer.read())) == []
    assert any(told in reason for _, _, reason in skips)


def test_without_pyarrow_parquet_is_refused_with_the_remedy(folder, monkeypatch):
    buffer = ReplayBuffer(folder)
    assert len(buffer.read()) == 119
    _compact(folder)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MisconfiguredError, match=r"genesis-fp16\[parquet\]"):
        buffer.snapshot()


_VALUES = st.one_of(
    st.floats(),
    st.integers(),
    st.booleans(),
    st.text(max_size=5),
    st.lists(st.floats(), max_size=3).map(tuple),
    st.lists(st.integers(), max_size=3).map(tuple),
    st.lists(st.text(max_size=3), max_size=3).map(tuple),
)
_FIELDS = st.dictionaries(st.sampled_from(["a", "b", "ü", "a.b"]), _VALUES, max_size=3)


@given(rows=st.lists(st.tuples(_FIELDS, _FIELDS, st.booleans()), min_size=1, max_size=12))
def test_any_transition_is_restored_byte_for_byte(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("any")
    _record(
        folder,
        [
            Transition(group="g", observation=first, action=second, terminated=ended)
            for first, second, ended in rows
        ],
    )
    (segment,) = folder.iterdir()
    content = segment.read_bytes()
    assert _compact(folder).segments == 1
    ((path, described),) = find_compacted(folder, None).values()
    assert b"".join(restored_lines(path, described)) == content


_KILLED = """
import os, signal, sys
from pathlib import Path
from infrastructure.trajectories import compaction, parquet_segments

left = int(sys.argv[2])

def step(*_):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(lambda event, _: step() if event in ("os.rename", "os.remove") else None)
parquet_segments._GROUP_ROWS = 16
compaction.compact(Path(sys.argv[1]), step, smallest=0)
"""


@pytest.mark.usefixtures("forked")
def test_a_compaction_killed_at_any_point_loses_nothing(folder):
    before, kills = _state(folder), 0
    for steps in itertools.count(step=3):
        program = [sys.executable, "-P", "-c", _KILLED, str(folder), str(steps)]
        code = subprocess.run(program, check=False).returncode
        assert _state(folder) == before
        if code == 0:
            break
        assert code == -signal.SIGKILL
        kills += 1
    assert kills > 5
    assert _compact(folder) is None
    assert [path.suffix for path in folder.iterdir() if path.name[0] != "."] == [".parquet"]

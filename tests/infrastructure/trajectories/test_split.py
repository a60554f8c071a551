from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from infrastructure.trajectories import part_of, split_rows


@given(st.lists(st.text(min_size=1, max_size=3)), st.integers(0, 2**32))
def test_no_group_is_in_two_parts_and_no_row_is_lost(groups, seed):
    rows = split_rows("group", groups, seed)
    members = {part: {groups[row] for row in indices} for part, indices in rows.items()}
    assert not members["train"] & members["calibration"]
    assert not members["train"] & members["test"]
    assert not members["calibration"] & members["test"]
    assert sorted(row for indices in rows.values() for row in indices) == list(range(len(groups)))


def test_a_group_keeps_its_part_as_others_come():
    few = split_rows("group", [f"g{n}" for n in range(20)])
    many = split_rows("group", [f"g{n}" for n in range(200)])
    for part, rows in few.items():
        assert set(rows) <= set(many[part])


def test_shares_and_seed():
    parts = Counter(part_of(f"g{n}") for n in range(20_000))
    assert abs(parts["train"] / 20_000 - 0.6) < 0.02
    assert abs(parts["calibration"] / 20_000 - 0.2) < 0.02
    moved = sum(part_of(f"g{n}", 0) != part_of(f"g{n}", 1) for n in range(1000))
    assert moved > 300


def test_the_parts_are_the_same_in_every_version():
    assert [part_of(f"task-{n}", 7) for n in range(6)] == [
        "train",
        "train",
        "calibration",
        "calibration",
        "train",
        "test",
    ]


def test_the_newest_groups_are_the_test():
    rows = split_rows("time", [f"g{n // 2}" for n in range(20)])
    assert rows == {
        "train": list(range(12)),
        "calibration": list(range(12, 16)),
        "test": list(range(16, 20)),
    }


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 30))
def test_no_group_goes_back_to_test_as_newer_ones_come_and_older_ones_go(before, more, dropped):
    """A model was trained on the first parts of the first moment, and is tested on the second."""
    groups = [f"g{n}" for n in range(before + more)]
    then = split_rows("time", groups[:before])
    seen = {groups[row] for part in ("train", "calibration") for row in then[part]}
    kept = groups[dropped:]
    tested = {kept[row] for row in split_rows("time", kept)["test"]}
    assert not seen & tested

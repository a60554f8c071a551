import random
import sys

import pytest

from infrastructure.agent_contract.agent import MisconfiguredError
from infrastructure.agent_contract.transition import Transition
from infrastructure.trajectories.minari_data import MinariError, read_minari, write_minari

pytest.importorskip("minari", reason="installed with the extra dev")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))


def _episodes(observe, act, count=5, length=7):
    """Episodes of several lengths; the last is not over."""
    generator = random.Random(0)
    rows = []
    for number in range(count):
        states = [observe(generator) for _ in range(length - number % 2 + 1)]
        for step in range(len(states) - 1):
            is_last = step == len(states) - 2
            rows.append(
                Transition(
                    group=f"e{number}",
                    observation=states[step],
                    action=act(generator),
                    reward=generator.gauss(0, 1),
                    next_observation=states[step + 1],
                    terminated=is_last and number < count - 1,
                    info={"truncated": True} if is_last and number == count - 1 else {},
                )
            )
    return rows


CASES = {
    "vectors": (
        lambda r: {"observation": tuple(r.gauss(0, 1) for _ in range(3))},
        lambda r: {"action": (r.uniform(-1, 1),)},
    ),
    "named": (
        lambda r: {"observation.x": r.random(), "observation.seen": r.randrange(-2, 5)},
        lambda r: {"action": r.randrange(3)},
    ),
    "texts": (
        lambda r: {"observation.state": r.choice(["", "abc", "né"]), "observation.n": 1.5},
        lambda r: {"action": r.choice(["left", "right"])},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_round_trip_keeps_the_transitions(case):
    rows = _episodes(*CASES[case])
    assert write_minari("mine/test-v0", rows) == 5
    back = list(read_minari("mine/test-v0"))
    assert [row.observation for row in back] == [row.observation for row in rows]
    assert [row.next_observation for row in back] == [row.next_observation for row in rows]
    assert [row.action for row in back] == [row.action for row in rows]
    assert [row.reward for row in back] == [row.reward for row in rows]
    assert [row.terminated for row in back] == [row.terminated for row in rows]
    assert [row.info for row in back] == [row.info for row in rows]
    assert [row.group for row in back] == [
        f"mine/test-v0#{row.group.removeprefix('e')}" for row in rows
    ]


def test_other_names_come_back_below_their_part():
    rows = _episodes(lambda r: {"speed": r.random()}, lambda r: {"push": r.random()})
    write_minari("mine/test-v0", rows)
    (first, *_) = read_minari("mine/test-v0")
    assert first.observation == {"observation.speed": rows[0].observation["speed"]}
    assert first.action == {"action.push": rows[0].action["push"]}


def test_episodes_side_by_side_are_told_apart():
    rows = _episodes(*CASES["vectors"])
    groups = [[row for row in rows if row.group == group] for group in ("e0", "e2")]
    alternating = [row for pair in zip(*groups, strict=True) for row in pair]
    assert write_minari("mine/test-v0", alternating) == 2
    back = list(read_minari("mine/test-v0"))
    assert [row.observation for row in back] == [
        row.observation for group in groups for row in group
    ]


def test_a_folder_can_be_read(tmp_path):
    rows = _episodes(*CASES["vectors"])
    write_minari("mine/test-v0", rows)
    folder = tmp_path / "datasets" / "mine" / "test-v0" / "data"
    assert len(list(read_minari(str(folder)))) == len(rows)


@pytest.mark.parametrize(
    ("observations", "problem"),
    [
        ([{"x": 1.0}, {"y": 1.0}], "needs the same fields"),
        ([{"x": 1.0}, {"x": "one"}], "one type and length"),
        ([{"x": (1.0,)}, {"x": (1.0, 2.0)}], "one type and length"),
        ([{"x": ("a",)}, {"x": ("a",)}], "one type and length"),
        ([], "let the agent collect"),
    ],
)
def test_what_cannot_be_written_is_told(observations, problem):
    rows = [
        Transition(group="g", observation=each, next_observation=each, action={"a": 1})
        for each in observations
    ]
    with pytest.raises(MinariError, match=problem):
        write_minari("mine/test-v0", rows)


@pytest.mark.parametrize(
    ("names", "value", "problem"),
    [
        (("a/b", "c"), 1.0, "slash"),
        (("x", "observation.x"), 1.0, "prefix"),
        (("x", "y"), 1 << 70, "too many"),
    ],
)
def test_fields_that_minari_cannot_hold_are_told(names, value, problem):
    state = dict.fromkeys(names, value)
    row = Transition(group="g", observation=state, action={"a": 1}, next_observation=state)
    with pytest.raises(MinariError, match=problem):
        write_minari("mine/odd-v0", [row])


def test_a_name_without_a_version_is_refused():
    with pytest.raises(MinariError, match="version"):
        write_minari(
            "mine/odd", _episodes(lambda g: {"x": g.random()}, lambda g: {"a": g.random()})
        )


def test_a_damaged_data_set_is_told(tmp_path):
    write_minari("mine/d-v0", _episodes(*CASES["vectors"]))
    (file,) = tmp_path.rglob("*.hdf5")
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(MinariError, match="damaged"):
        list(read_minari("mine/d-v0"))


def test_a_data_set_is_not_overwritten():
    rows = _episodes(*CASES["vectors"])
    write_minari("mine/test-v0", rows)
    with pytest.raises(MinariError, match="mine/test-v0"):
        write_minari("mine/test-v0", rows)


def test_nothing_is_downloaded():
    with pytest.raises(MinariError, match="minari download"):
        list(read_minari("D4RL/door/human-v2"))


def test_without_minari_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(MisconfiguredError, match=r"genesis-fp16\[minari\]"):
        list(read_minari("mine/test-v0"))

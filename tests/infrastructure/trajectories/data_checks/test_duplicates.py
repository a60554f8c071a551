import random
from dataclasses import replace

import pytest

from infrastructure.agent_contract.transition import Box, Discrete, Text, Transition, TransitionSpec
from infrastructure.trajectories import split_rows
from infrastructure.trajectories.data_checks import duplicates
from infrastructure.trajectories.data_checks.duplicates import find_duplicates


def find(spec, transitions):
    return find_duplicates(
        spec, transitions, split_rows("group", [transition.group for transition in transitions])
    )


def copied(transitions, times=1, share=1.0):
    chosen = transitions[: int(share * len(transitions))]
    return transitions + [
        replace(row, group=f"copy {copy} of {row.group}") for copy in range(times) for row in chosen
    ]


@pytest.mark.parametrize(("times", "share"), [(1, 1.0), (1, 0.2), (3, 1.0), (9, 0.5)])
@pytest.mark.parametrize("rows_per_group", [1, 7])
def test_noise_recorded_again_under_other_groups(spec, record_noise, times, share, rows_per_group):
    transitions = copied(record_noise(3000, rows_per_group), times, share)
    found = find(spec, transitions).finding
    assert found is not None
    assert 0.05 < found.figures["repeated"] / found.figures["held_out"] <= 1.0
    assert "of another group ('" in found.problem
    assert "copy " in found.problem
    assert found.remedy.startswith("give transitions that belong together one group")


def test_copies_may_differ_in_case_space_and_composition(spec):
    letter = TransitionSpec(observation={"t": Text()}, action={}, targets=spec.targets)
    rows = [
        Transition(
            group=f"{name}{number // 5}",
            observation={"t": f"{text} {number * 7919}"},
            action={},
            next_observation={},
        )
        for name, text in (("a", "Caf\u00e9 noir"), ("b", " CAFE\u0301  Noir"))
        for number in range(600)
    ]
    assert find(letter, rows).finding is not None


def test_copies_may_differ_by_rounding(spec, record_noise):
    rows = record_noise()
    blurred = [
        replace(
            row,
            group=f"again {row.group}",
            observation=row.observation | {"load": round(row.observation["load"], 5)},
        )
        for row in rows
    ]
    found = find(spec, rows + blurred).finding
    assert found is not None
    assert found.figures["repeated"] > 0.3 * found.figures["held_out"]


def test_texts_recorded_again(record_noise):
    spec = TransitionSpec(
        observation={"text": Text()}, action={}, targets={"ok": Discrete(values=("no", "yes"))}
    )
    rows = [
        Transition(
            group=f"g{number}",
            observation={"text": [f"word {number}"] if number % 2 else f"text {number}"},
            action={},
            next_observation={"ok": "yes"},
        )
        for number in range(400)
    ]
    assert find(spec, rows).finding is None
    assert find(spec, copied(rows)).finding is not None


def test_noise_is_no_duplicate(spec, record_noise):
    assert find(spec, record_noise()).finding is None
    assert find(spec, record_noise(1000, 10)).finding is None


@pytest.mark.parametrize("lengths", [(1,), (5,), (30,), (1, 60)])
@pytest.mark.parametrize("start", [None, (0, 0)])
def test_a_small_world_repeats_its_states(grid_spec, record_grid, lengths, start):
    for seed in range(3):
        transitions = record_grid(300, lengths, start, seed)
        assert find(grid_spec, transitions).finding is None


def test_answers_of_a_survey_repeat():
    generator = random.Random(0)
    spec = TransitionSpec(
        observation={f"q{n}": Discrete(values=tuple("abc")) for n in range(6)},
        action={},
        targets={"q": Discrete(values=tuple("abc"))},
    )
    rows = []
    for number in range(2000):
        mood = generator.random()
        answers = ["abc"[min(2, int(3 * (mood + generator.gauss(0, 0.1)) % 3))] for _ in range(7)]
        observation = {f"q{n}": answer for n, answer in enumerate(answers[:6])}
        rows.append(
            Transition(
                group=str(number),
                observation=observation,
                action={},
                next_observation={"q": answers[6]},
            )
        )
    found = find(spec, rows)
    assert len(found.repeated) > 300
    assert found.finding is None


def test_missing_values_are_values_of_their_own(spec, record_noise):
    rows = [
        replace(row, observation={"load": float("nan"), "place": (None, 1.0), "topic": "a"})
        for row in record_noise(50)
    ]
    assert len(find(spec, rows).repeated) > 10
    empty = [replace(row, observation={}) for row in record_noise(50)]
    assert len(find(spec, empty).repeated) > 10


def test_of_many_rows_all_copies_of_some_are_compared(spec, record_noise, monkeypatch):
    monkeypatch.setattr(duplicates, "MOST_ROWS", 700)
    found = find(spec, copied(record_noise(2000))).finding
    assert found is not None
    assert "of a sample of" in found.problem
    assert 200 < found.figures["held_out"] < 400
    assert found.figures["repeated"] > 0.5 * found.figures["held_out"]
    assert find(spec, record_noise(4000)).finding is None


def test_inputs_of_few_values_repeat_by_chance():
    spec = TransitionSpec(
        observation={"first": Box(), "second": Box(), "third": Box()},
        action={"side": Discrete(values=("a", "b"))},
        targets={"y": Discrete(values=("no", "yes"))},
    )
    for seed in range(10):
        generator = random.Random(seed)
        rows = [
            Transition(
                group=f"g{number // 8}",
                observation={name: float(generator.randrange(10)) for name in spec.observation},
                action={"side": generator.choice("ab")},
                next_observation={"y": ("no", "yes")[generator.random() < 0.5]},
            )
            for number in range(800)
        ]
        assert find(spec, rows).finding is None, seed

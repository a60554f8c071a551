from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium
import pytest
import torch

from infrastructure.agent_contract import Transition
from infrastructure.environments.course import UnsuitableEnvironmentError
from infrastructure.environments.memory import Memory
from infrastructure.trajectories import ReplayBuffer


def transitions(*numbers: int) -> list[Transition]:
    return [
        Transition(
            group="episode",
            observation={"observation": (float(number),) * 4},
            action={"action": (number % 2,)},
            reward=number + 0.5,
            next_observation={"observation": (number + 1.0,) * 4},
            terminated=number == 3,
        )
        for number in numbers
    ]


def memory(capacity: int, *numbers: int) -> Memory:
    held = Memory(gymnasium.make_vec("CartPole-v1", num_envs=2), capacity)
    held.add(transitions(*numbers))
    return held


def sample(held: Memory, rows: int = 400) -> Any:
    return held.sample(rows, torch.Generator().manual_seed(1))


def test_a_batch_holds_rows_of_single_transitions():
    batch = sample(memory(10, 1, 2, 3))
    first = batch["observation"][:, 0]
    assert batch["observation"].shape == (400, 4)
    assert torch.equal(batch["next_observation"], batch["observation"] + 1)
    assert torch.equal(batch["reward"], first + 0.5)
    assert torch.equal(batch["action"], first.long() % 2)
    assert batch["action"].dtype == torch.int64
    assert torch.equal(batch["terminated"], (first == 3).float())
    counts = first.long().bincount().tolist()
    assert counts[0] == 0
    assert min(counts[1:]) > 100


def test_the_oldest_leave_when_there_is_no_more_room():
    assert set(sample(memory(3, 1, 2, 3, 4, 5))["observation"][:, 0].tolist()) == {3, 4, 5}


def test_what_has_left_before_does_not_change_the_sample():
    held = sample(memory(3, 1, 2, 3, 4, 5)), sample(memory(3, 3, 4, 5))
    assert all(torch.equal(held[0][name], held[1][name]) for name in held[0])


def test_records_of_another_environment_are_refused_by_field():
    held = Memory(gymnasium.make_vec("Pendulum-v1", num_envs=1), 3)
    with pytest.raises(UnsuitableEnvironmentError, match=r"3 numbers in each observation.* has 4"):
        held.add(transitions(1))


def steps(environment: int, *numbers: int, run: str = "run") -> list[Transition]:
    """Steps of one episode, numbered; those of environment 2 observe 2000 and more."""
    return [
        Transition(
            group=f"episode of {environment}",
            observation={"observation": (1000.0 * environment + number,) * 4},
            action={"action": (0,)},
            reward=1.0,
            next_observation={"observation": (1000.0 * environment + number + 1,) * 4},
            terminated=False,
            info={"run": run, "environment": environment},
        )
        for number in numbers
    ]


def windows(transitions: list[Transition], length: int, capacity: int = 100) -> Any:
    """The different sequences of many drawn: observations, and in which of them one begins."""
    held = Memory(gymnasium.make_vec("CartPole-v1", num_envs=2), capacity)
    held.add(transitions)
    batch = held.sample_sequences(400, length, torch.Generator().manual_seed(1))
    assert batch["observation"].shape == (400, length, 4)
    assert batch["first"].shape == batch["reward"].shape == (400, length)
    observations, first = (batch[name].long().tolist() for name in ("observation", "first"))
    return {
        tuple(row[0] for row in rows): flags
        for rows, flags in zip(observations, first, strict=True)
    }


def test_a_sequence_stays_in_its_environment_and_run():
    turns = [each for number in range(4) for n in (1, 2) for each in steps(n, number)]
    assert windows([*turns, *steps(1, 4, 5, 6, run="later")], 3) == {
        (1000, 1001, 1002): [1, 0, 0],
        (1001, 1002, 1003): [1, 0, 0],
        (2000, 2001, 2002): [1, 0, 0],
        (2001, 2002, 2003): [1, 0, 0],
        (1004, 1005, 1006): [1, 0, 0],
    }


def test_the_beginning_of_an_episode_is_marked():
    episodes = steps(1, 0, 1), [replace(each, group="next") for each in steps(1, 2, 3)]
    assert windows([*episodes[0], *episodes[1]], 4) == {(1000, 1001, 1002, 1003): [1, 0, 1, 0]}


def test_steps_after_a_lost_one_are_marked():
    assert windows(steps(1, 0, 1, 3, 4), 4) == {(1000, 1001, 1003, 1004): [1, 0, 1, 0]}


def test_an_episode_goes_on_where_an_observation_is_nan(tmp_path):
    """NaN differs from itself, but not where one object is all that was read from a file."""
    made = [
        replace(each, observation=blind(), next_observation=blind()) for each in steps(1, 0, 1, 2)
    ]
    buffer = ReplayBuffer(tmp_path)
    for each in made:
        buffer.append(each)
    buffer.flush()
    for known in (made, list(buffer.read())):
        held = Memory(gymnasium.make_vec("CartPole-v1", num_envs=2), 100)
        held.add(known)
        batch = held.sample_sequences(1, 3, torch.Generator().manual_seed(1))
        assert batch["first"].tolist() == [[1, 0, 0]]


def blind() -> dict[str, tuple[float, ...]]:
    return {"observation": (float("nan"), 1.0, 2.0, 3.0)}


def test_the_oldest_steps_leave_the_sequences():
    turns = [each for number in range(4) for n in (1, 2) for each in steps(n, number)]
    assert windows(turns, 2, capacity=4) == {(1002, 1003): [1, 0], (2002, 2003): [1, 0]}
    assert windows(turns[:-1], 2, capacity=3) == {(1002, 1003): [1, 0]}


def test_all_sequences_are_equally_likely():
    held = Memory(gymnasium.make_vec("CartPole-v1", num_envs=2), 100)
    held.add(steps(1, 0, 1, 2, 3) + steps(2, 0, 1))
    batch = held.sample_sequences(4000, 2, torch.Generator().manual_seed(1))
    counts = batch["observation"][:, 0, 0].long().unique(return_counts=True)[1].tolist()
    assert len(counts) == 4
    assert all(abs(count - 1000) < 150 for count in counts)


@pytest.mark.parametrize("length", [3, 9])
def test_too_few_steps_for_a_sequence_are_refused(length):
    with pytest.raises(
        ValueError, match=rf"CartPole-v1 gave no {length} consecutive.* sequence_length"
    ):
        windows(steps(1, 0, 1) + steps(2, 0, 1), length)

"""Control by planning in a learned world model, on Gymnasium's classic tasks.

``python -m benchmarks.world_model.planning --task pendulum --episodes 30 --seeds 0 1 2``

For each seed and precision a model learns from random episodes, collects further ones with its own
plans, learns from all of them, and is then measured on new episodes. On a CPU the half precisions
are those of ``cpu_half``: the middle layer of the network computes in them. Models and episodes are
kept in the folder of results, and what is kept is not measured again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium
import numpy as np
import torch
from torch import Tensor

from infrastructure.agent_contract import Transition
from infrastructure.agent_contract.transition import Box, Discrete, FieldValue, TransitionSpec
from infrastructure.training import FP16TrainingConfig, Precision
from infrastructure.world_model import WorldModel
from infrastructure.world_model.planning import Planner, PlanSettings

Fields: TypeAlias = Mapping[str, Tensor]
Environment: TypeAlias = "gymnasium.Env[np.ndarray, int | np.ndarray]"
Act: TypeAlias = Callable[[Sequence[float]], Mapping[str, FieldValue]]

PRECISIONS = (Precision.FP32, Precision.BF16, Precision.FP16)
FIRST_EVALUATION_SEED = 100_000  # starts of episodes that no training has seen
_ENDS = Discrete(values=("false", "true"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A task and how it is learned.

    Attributes:
        environment: Name that gymnasium registers.
        state: Dimensions of the observation.
        action: Type of the action.
        goal: Mean return to reach.
        horizon: Steps of a plan.
        settings: Options of the search.
        steps: Longest collected episode.
        random, planned: Transitions that are collected at random, then by plans.
        rounds: Trainings; the planned transitions are spread over those after the first.
        ends: Whether the task has terminal states.
    """

    environment: str
    state: int
    action: Box | Discrete
    goal: float
    horizon: int
    settings: PlanSettings
    steps: int
    random: int
    planned: int
    rounds: int = 2
    ends: bool = True

    @property
    def spec(self) -> TransitionSpec:
        """Fields: the state's change, the reward, and whether the episode terminated."""
        state = Box(shape=(self.state,))
        targets = {"state": Box(shape=(self.state,), delta=True), "reward": Box()}
        return TransitionSpec(
            observation={"state": state},
            action={"action": self.action},
            targets=targets | ({"terminated": _ENDS} if self.ends else {}),
        )


def _car_reward(before: Fields, action: Fields, after: Fields) -> Tensor:
    """MountainCarContinuous' own reward."""
    del before
    reached = after["state"][..., 0] >= 0.45
    return 100.0 * reached - 0.1 * action["action"][..., 0].square()


def _acrobot_reward(before: Fields, action: Fields, after: Fields) -> Tensor:
    """Energy that the links lack to swing the tip up, and a prize for reaching its height.

    Heights alone would end the plans that first swing back. The energy is that of Acrobot-v1's
    constants: this reward knows the task.
    """
    del before, action
    cosine, sine, second_cosine, second_sine, speed, second_speed = after["state"].unbind(-1)
    tip = cosine * second_cosine - sine * second_sine
    kinetic = (
        0.5 * (3.5 + second_cosine) * speed.square()
        + (1.25 + 0.5 * second_cosine) * speed * second_speed
        + 0.625 * second_speed.square()
    )
    energy = kinetic - 9.8 * (1.5 * cosine + 0.5 * tip)
    lacking = ((energy - 30.0) / 10.0).clamp(max=0.0)
    return lacking + 20.0 * (-cosine - tip > 1.0)


def _balance_reward(before: Fields, action: Fields, after: Fields) -> Tensor:
    """One per step, less for a pole that leans or a cart off the middle."""
    del before, action
    position, _, angle, _ = after["state"].unbind(-1)
    return 1.0 - (position / 2.4).square() - (angle / 0.21).square()


TASKS = {
    "pendulum": Task(
        environment="Pendulum-v1",
        state=3,
        action=Box(shape=(1,)),
        goal=-155.0,
        horizon=20,
        settings=PlanSettings(bounds={"action": (-2.0, 2.0)}),
        steps=100,
        random=2000,
        planned=2000,
        ends=False,
    ),
    "mountain-car": Task(
        environment="MountainCarContinuous-v0",
        state=2,
        action=Box(shape=(1,)),
        goal=93.0,
        horizon=100,
        settings=PlanSettings(bounds={"action": (-1.0, 1.0)}, reward=_car_reward, noise_colour=3.0),
        steps=200,
        random=8000,
        planned=2000,
    ),
    "acrobot": Task(
        environment="Acrobot-v1",
        state=6,
        action=Discrete(values=("0", "1", "2")),
        goal=-85.0,
        horizon=30,
        settings=PlanSettings(reward=_acrobot_reward, beam_width=32),
        steps=200,
        random=4000,
        planned=2000,
    ),
    "cart-pole": Task(
        environment="CartPole-v1",
        state=4,
        action=Discrete(values=("0", "1")),
        goal=495.0,
        horizon=20,
        settings=PlanSettings(reward=_balance_reward, beam_width=16),
        steps=100,
        random=2000,
        planned=2000,
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Result of one model.

    Attributes:
        returns: Return of each evaluation episode.
        plan_milliseconds: Process time of a plan, on average.
        transitions: Transitions that the model learned from.
        effective: Precision of the training.
    """

    returns: Sequence[float]
    plan_milliseconds: float
    transitions: int
    effective: str


def measure(
    task: Task, seed: int, precision: Precision, episodes: int, folder: Path | None = None
) -> Measured:
    """Learn *task* and control new episodes by plans.

    Args:
        folder: Folder that keeps the model and each episode, None to keep nothing. What it holds is
            not measured again; an episode does not depend on those before it.
    """
    kept = [] if folder is None else _read_lines(folder / "episodes.jsonl")
    learned: Mapping[str, Any]
    if folder is None or not (folder / "learned.json").exists():
        model, learned = _learn(task, seed, precision)
        if folder is not None:
            model.save(folder / "model")
            (folder / "learned.json").write_text(json.dumps(learned))
    else:
        model = WorldModel.load(folder / "model")
        learned = json.loads((folder / "learned.json").read_text())
    env = gymnasium.make(task.environment)
    for episode in range(len(kept), episodes):
        start = FIRST_EVALUATION_SEED + 1000 * seed + episode
        planner, began = model.planner(task.horizon, task.settings, seed=start), time.process_time()
        taken = _episode(task, env, start, _plans(planner))
        line = {
            "return": sum(step.reward for step in taken),
            "steps": len(taken),
            "seconds": time.process_time() - began,
        }
        kept.append(line)
        if folder is not None:
            with (folder / "episodes.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
    env.close()
    kept = kept[:episodes]
    seconds, steps = (sum(line[name] for line in kept) for name in ("seconds", "steps"))
    return Measured(
        returns=[line["return"] for line in kept],
        plan_milliseconds=1000 * seconds / steps,
        transitions=learned["transitions"],
        effective=learned["effective"],
    )


def _read_lines(path: Path) -> list[Mapping[str, float]]:
    """Complete lines of *path*; a process that was killed may have left a part of one."""
    if not path.exists():
        return []
    whole = path.read_text().rpartition("\n")[0]
    path.write_text(whole + "\n" if whole else "")
    return [json.loads(line) for line in whole.splitlines()]


def _learn(task: Task, seed: int, precision: Precision) -> tuple[WorldModel, dict[str, Any]]:
    """Learn from random episodes, then from those of the model's own plans; a model and facts."""
    rng = np.random.default_rng(seed)
    data = _collect(task, rng, task.random, None)
    model = _fit(task, data, seed, precision)
    for _ in range(1, task.rounds):
        data += _collect(task, rng, task.planned // (task.rounds - 1), model)
        model = _fit(task, data, seed, precision)
    effective = str(model.training_stats["precision_effective"])
    return model, {"transitions": len(data), "effective": effective}


def _fit(task: Task, data: Sequence[Transition], seed: int, precision: Precision) -> WorldModel:
    model = WorldModel(task.spec, seed=seed)
    config = FP16TrainingConfig(precision=precision, cpu_half=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # constant fields
        model.fit(data, epochs=150, batch_size=64, config=config, device="cpu")
    return model


def _collect(
    task: Task, rng: np.random.Generator, count: int, model: WorldModel | None
) -> list[Transition]:
    """Episodes of *count* transitions at least, at random or by plans."""
    env = gymnasium.make(task.environment, max_episode_steps=task.steps)
    data = list[Transition]()
    while len(data) < count:
        act = (
            _at_random(task, rng)
            if model is None
            else _plans(model.planner(task.horizon, task.settings, seed=int(rng.integers(2**31))))
        )
        data += _episode(task, env, int(rng.integers(2**31)), act)
    env.close()
    return data[:count]


def _plans(planner: Planner) -> Act:
    planner.reset()
    return lambda state: planner.plan({"state": state}).actions[0]


def _at_random(task: Task, rng: np.random.Generator) -> Act:
    """Actions that change slowly."""
    if isinstance(task.action, Discrete):
        labels, label = task.action.values, "0"

        def choose(_: Sequence[float]) -> Mapping[str, FieldValue]:
            nonlocal label
            label = str(rng.choice(labels)) if rng.random() < 0.3 else label
            return {"action": label}

        return choose
    low, high = task.settings.bounds["action"]
    push = 0.0

    def swing(_: Sequence[float]) -> Mapping[str, FieldValue]:
        nonlocal push
        push = 0.9 * push + float(rng.normal(scale=0.8))
        return {"action": [float(np.clip(push, low, high))]}

    return swing


def _episode(task: Task, env: Environment, seed: int, act: Act) -> list[Transition]:
    state, _ = env.reset(seed=seed)
    taken, done = list[Transition](), False
    while not done:
        action = act(state.tolist())
        value = action["action"]
        given = int(value) if isinstance(value, str) else np.array(value, dtype=np.float32)
        following, reward, terminated, truncated, _ = env.step(given)
        taken.append(
            Transition(
                group=f"{task.environment}/{seed}",
                observation={"state": state.tolist()},
                action=action,
                reward=float(reward),
                next_observation={"state": following.tolist()},
                terminated=bool(terminated),
            )
        )
        state, done = following, terminated or truncated
    return taken


def main(arguments: Sequence[str]) -> int:
    """Measure and print; exit code 1 if a precision misses the task's goal."""
    parser = argparse.ArgumentParser(prog="benchmarks.world_model.planning", description=__doc__)
    parser.add_argument("--task", choices=TASKS, default="pendulum")
    parser.add_argument("--episodes", type=int, default=30, help="of each model")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--precisions", type=Precision, choices=PRECISIONS, nargs="+", default=PRECISIONS
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("benchmark_results/planning"),
        metavar="FOLDER",
        help="where models and episodes are kept",
    )
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    task, missed = TASKS[options.task], False
    for precision in options.precisions:
        returns: list[float] = []
        for seed in options.seeds:
            folder = options.results / f"{options.task}-{precision}-{seed}"
            found = measure(task, seed, precision, options.episodes, folder)
            returns += found.returns
            print(
                f"{options.task} {precision} (trained in {found.effective}) seed {seed}: "
                f"{np.mean(found.returns):.1f} after {found.transitions} transitions, "
                f"{found.plan_milliseconds:.1f} ms a plan",
                flush=True,
            )
        error = np.std(returns) / len(returns) ** 0.5
        missed |= bool(np.mean(returns) < task.goal)
        print(
            f"{options.task} {precision}: mean return {np.mean(returns):.1f} ± {error:.1f} over "
            f"{len(returns)} episodes, goal {task.goal:g}",
            flush=True,
        )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

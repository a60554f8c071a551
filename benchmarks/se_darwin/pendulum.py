"""The example agent's control task: swing up a pendulum by planning in a learned model."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measuring.not_run import NotRunError
from infrastructure.agent_contract import RunContext, Transition
from infrastructure.agent_contract.run_context import Budget
from infrastructure.world_model.distributions import BoxDistribution
from infrastructure.world_model.fitting import FittedModel, TrainingData, prepare_training_data

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "pendulum_agent"
STARTS = 3
HORIZON, PLANS = 12, 64
MAX_TORQUE = 2.0

Numbers = NDArray[np.float64]


def pendulum_data(seed: int, transitions: int) -> TrainingData:
    """Collect the example agent's training data.

    Raises:
        NotRunError: gymnasium is not installed.
    """
    agent = example_agent()
    with TemporaryDirectory() as folder:
        context = RunContext(
            run_id="bench",
            attempt=1,
            agent=agent.name,
            device="cpu",
            seed=seed,
            agent_folder=Path(folder),
            run_folder=Path(folder),
            budget=Budget(seconds=600.0, transitions=transitions),
            settings=None,
            logger=SimpleNamespace(info=_ignore, warning=_ignore),
            report_progress=_ignore,
        )
        collected: Iterator[Transition] = agent.collect(context)
        return prepare_training_data(agent.spec(), collected)


def plan_swing(model: FittedModel, steps: int, seed: int) -> float:
    """Return the mean return of *steps* steps over `STARTS` episodes, planned in *model*.

    Random shooting: each step applies the first torque of the plan with the highest predicted
    return; half of the plans vary the previous best plan. The seed fixes starts and plans.
    """
    import gymnasium

    rng = np.random.default_rng(seed)
    returns = []
    for start in range(STARTS):
        env = gymnasium.make("Pendulum-v1")
        state, _ = env.reset(seed=1000 * seed + start)
        best, total = np.zeros(HORIZON), 0.0
        for _ in range(steps):
            noise = np.cumsum(rng.normal(scale=0.8, size=(PLANS, HORIZON)), axis=1)
            noise[: PLANS // 2] += np.append(best[1:], 0.0)
            plans = np.clip(noise, -MAX_TORQUE, MAX_TORQUE)
            best = plans[int(np.argmax(_predicted_returns(model, state, plans)))]
            state, reward, *_ = env.step(best[:1].astype(np.float32))
            total += float(reward)
        env.close()
        returns.append(total)
    return sum(returns) / STARTS


def _predicted_returns(model: FittedModel, state: Numbers, plans_PH: Numbers) -> Numbers:
    states = np.repeat(np.asarray(state, dtype=float)[None], len(plans_PH), axis=0)
    total = np.zeros(len(plans_PH))
    for torques in plans_PH.T:
        features = model.encoder.encode(
            [{"state": row} for row in states], [{"torque": [torque]} for torque in torques]
        )
        predicted = model.predict(features)
        change, reward = predicted["state"], predicted["reward"]
        if not isinstance(change, BoxDistribution) or not isinstance(reward, BoxDistribution):
            raise TypeError("the pendulum's targets are Box")
        states = states + change.mean.numpy()
        total = total + reward.mean[:, 0].numpy()
    return total


def example_agent() -> Any:
    """Return an instance of the example agent.

    Raises:
        NotRunError: gymnasium is not installed.
    """
    if importlib.util.find_spec("gymnasium") is None:
        raise NotRunError("gymnasium is not installed: pip install '.[dev]'")
    sys.path.insert(0, str(EXAMPLE))
    try:
        module = importlib.import_module("pendulum_agent")
    finally:
        sys.path.remove(str(EXAMPLE))
    return module.PendulumAgent()


def _ignore(*_: object, **__: object) -> None:
    """Ignore log events and progress reports."""

"""Our loop: a published model ranks, the exploration chooses, a run trains and its gate publishes.

All of it is what a daemon's worker and predictor do, in one process: an agent without code with its
file in ``agents.d``, the replay buffer, the run's training, the gate, and the predictor's answer.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from agents.replay_agent import ReplayAgent
from benchmarks.bandit.sets import Context, Rounds
from benchmarks.measuring.agent_run import run_context, train_and_publish
from genesis_fp16.models import load_published
from genesis_fp16.predictor.models import ServedModel
from infrastructure.agent_contract import Transition
from infrastructure.agent_contract.agent import InsufficientDataError
from infrastructure.options.exploration import Exploration, choose
from infrastructure.trajectories import ReplayBuffer

NAME = "bandit"


class OurLoop:
    """The learner `genesis`.

    Args:
        explore: Exploration, as in ``GENESIS_AGENTS__BANDIT__EXPLORE``.

    Attributes:
        log: What each run did.
    """

    def __init__(self, rounds: Rounds, seed: int, explore: str) -> None:
        self._rounds, self._seed, self._explore = rounds, seed, Exploration.parse(explore)
        self._folder = tempfile.TemporaryDirectory(prefix="bandit-")
        home = Path(self._folder.name)
        self._definition = home / "agents.d" / f"{NAME}.toml"
        self._definition.parent.mkdir()
        self._definition.write_text(_definition(rounds))
        self._agent_folder = home / "agents" / NAME
        self._buffer = ReplayBuffer(self._agent_folder / "replay")
        self._served = ServedModel(agent=NAME)
        self._runs = 0
        self.log: list[str] = []

    def choose(self, number: int, context: Context) -> tuple[int, float]:
        """Position of the chosen action, and its propensity."""
        actions = [{"choice": action} for action in self._rounds.actions]
        shown = _shuffled(len(actions), self._seed, number)  # this agent has no order of its own
        ranking = self._served.rank(context, [actions[place] for place in shown])
        scores = ranking["improvements"] if None in ranking["chances"] else ranking["chances"]
        propensities = self._explore.propensities(
            ranking["order"], None if None in scores else scores
        )
        chosen = choose(propensities, self._seed, NAME, str(number))
        return shown[chosen], propensities[chosen]

    def learn(
        self, number: int, context: Context, action: int, propensity: float, reward: float
    ) -> None:
        """Record what came of a choice."""
        self._buffer.append(
            Transition(
                group=str(number),
                observation=dict(context),
                action={"choice": self._rounds.actions[action]},
                reward=reward,
                next_observation={"right": "yes" if reward else "no"},
                terminated=True,
                propensity=propensity,
            )
        )

    def train(self) -> None:
        """Run: train, and publish what the gate lets through."""
        began, self._runs = time.process_time(), self._runs + 1
        self._buffer.flush()
        agent, run = ReplayAgent(self._definition), str(self._runs)
        context = run_context(NAME, self._agent_folder, run, self._seed)
        buffer = ReplayBuffer(self._agent_folder / "replay")
        try:
            publication, _ = train_and_publish(agent, context, buffer)
        except InsufficientDataError as error:
            self.log.append(f"run {self._runs}: {error}")
            return
        self.log.append(
            f"run {self._runs}: {publication.published} {publication.reason} "
            f"({time.process_time() - began:.1f} s)"
        )
        published = load_published(self._agent_folder)
        self._served = ServedModel(agent=NAME, model=published.model, version=published.version)

    def close(self) -> None:
        """Remove the home."""
        self._buffer.close()
        self._folder.cleanup()


def _definition(rounds: Rounds) -> str:
    """The agent's file."""
    fields = [f'"{name}" = {{ type = "box" }}' for name in rounds.numbers]
    fields += [
        f'"{name}" = {{ type = "discrete", values = {_list(values)} }}'
        for name, values in rounds.labels.items()
    ]
    return "\n".join(
        (
            "[source]",
            'kind = "buffer"',
            "[spec]",
            'success = ["right", "yes"]',
            "[spec.observation]",
            *fields,
            "[spec.action]",
            f'choice = {{ type = "discrete", values = {_list(rounds.actions)} }}',
            "[spec.targets]",
            'right = { type = "discrete", values = ["no", "yes"] }',
            "",
        )
    )


def _list(values: Sequence[str]) -> str:
    return json.dumps(list(values))


def _shuffled(count: int, *seeds: object) -> list[int]:
    """Positions in an order that *seeds* draw."""
    places, order = list(range(count)), []
    while places:
        order.append(places.pop(choose([1.0 / len(places)] * len(places), *seeds, len(places))))
    return order

"""How long a running job takes from a change of the flag to the other precision, under load."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.guard.daemon import FaultDaemon
from infrastructure.events.event import PrecisionChanged

LONGEST_FLIP_SECONDS = 60.0
FIRST_STEP_SECONDS = 240.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Flip:
    """One worker's answer to one change of the flag.

    Attributes:
        number: Of the change.
        agent: Whose worker.
        to: The precision that is in force from the step after.
        seconds: From the moment the file was swapped to the step boundary at which the worker
            changed its precision; the next step is the first in it.
    """

    number: int
    agent: str
    to: str
    seconds: float


def measure_flips(agents: Sequence[str], folder: Path, *, changes: int, seed: int) -> list[Flip]:
    """Swap the settings file again and again while *agents* train all at once.

    Args:
        agents: Names of healthy ones; their workers are the load.
        folder: For the daemon; made if it is missing.
        changes: To FP32, and as many back.
        seed: Of the moments at which the file is swapped.

    Raises:
        DaemonFailedError: A worker did not change.
    """
    settings: dict[str, object] = {
        f"GENESIS_AGENTS__{name.replace('-', '_').upper()}__SETTINGS__EPOCHS": 10**9
        for name in agents
    }
    daemon = FaultDaemon(folder, agents, {"GENESIS_SLOTS": len(agents), **settings})
    pauses = random.Random(seed)  # noqa: S311  # when to swap, no secret
    flips: list[Flip] = []
    with daemon.serving():
        workers = _Workers(daemon, agents)
        daemon.wait_for(lambda: workers.all_in("fp16"), FIRST_STEP_SECONDS, "to train all agents")
        for number in range(changes):
            for flag, precision in (("false", "fp32"), ("true", "fp16")):
                time.sleep(pauses.uniform(0.2, 0.8))
                swapped = daemon.configure(ENABLE_FP16_TRAINING=flag)
                arrived = lambda to=precision: workers.all_in(to)  # noqa: E731
                daemon.wait_for(arrived, LONGEST_FLIP_SECONDS, f"to be in {precision}")
                flips += [
                    Flip(number=number, agent=name, to=precision, seconds=at - swapped)
                    for name, (_, at) in workers.in_force.items()
                ]
    return flips


class _Workers:
    """What each agent's worker acknowledged last.

    Attributes:
        in_force: Agent to precision and the Unix time since when.
    """

    def __init__(self, daemon: FaultDaemon, agents: Sequence[str]) -> None:
        self._daemon, self._agents = daemon, agents
        self.in_force: dict[str, tuple[str, float]] = {}

    def all_in(self, precision: str) -> bool:
        """Whether every agent's worker acknowledged *precision* last."""
        runs = {run.id: run.agent for run in self._daemon.store.unfinished()}
        for run_id, event in self._daemon.new_events(runs):
            if isinstance(event, PrecisionChanged):
                self.in_force[runs[run_id]] = (event.state.effective, event.time)
        found = [self.in_force.get(agent, ("", 0.0))[0] for agent in self._agents]
        return all(each == precision for each in found)

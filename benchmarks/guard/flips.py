"""Time from a change of the flag until a running job has the other precision, under load."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.guard.daemon import DaemonProcess
from infrastructure.events.event import PrecisionChanged

LONGEST_FLIP_SECONDS = 60.0
FIRST_STEP_SECONDS = 240.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Flip:
    """A change of precision in one worker.

    Attributes:
        number: Number of the change of the flag.
        agent: Agent of the worker.
        to: The new precision.
        seconds: Seconds from the replacement of the settings file to the step boundary at which the
            worker changed its precision; the next step is the first in it.
    """

    number: int
    agent: str
    to: str
    seconds: float


def measure_flips(agents: Sequence[str], folder: Path, *, changes: int, seed: int) -> list[Flip]:
    """Replace the settings file repeatedly while all *agents* train at the same time.

    Args:
        agents: Names of healthy agents; their workers are the load.
        folder: Folder of the daemon; created if missing.
        changes: Number of changes to FP32, and of changes back.
        seed: Seed of the times of the changes.

    Raises:
        DaemonFailedError: A worker did not change its precision.
    """
    settings: dict[str, object] = {
        f"GENESIS_AGENTS__{name.replace('-', '_').upper()}__SETTINGS__EPOCHS": 10**9
        for name in agents
    }
    daemon = DaemonProcess(folder, agents, {"GENESIS_SLOTS": len(agents), **settings})
    pauses = random.Random(seed)  # noqa: S311  # times of changes, not a secret
    flips: list[Flip] = []
    with daemon.serving():
        workers = _Workers(daemon, agents)
        daemon.wait_for(lambda: workers.all_in("fp16"), FIRST_STEP_SECONDS, "to train all agents")
        for number in range(changes):
            for flag, precision in (("false", "fp32"), ("true", "fp16")):
                time.sleep(pauses.uniform(0.2, 0.8))
                changed_at = daemon.configure(ENABLE_FP16_TRAINING=flag)
                has_changed = lambda to=precision: workers.all_in(to)  # noqa: E731
                daemon.wait_for(has_changed, LONGEST_FLIP_SECONDS, f"to be in {precision}")
                flips += [
                    Flip(number=number, agent=name, to=precision, seconds=at - changed_at)
                    for name, (_, at) in workers.acknowledged.items()
                ]
    return flips


class _Workers:
    """Precision that each agent's worker acknowledged last.

    Attributes:
        acknowledged: Precision and Unix time of the change, by agent.
    """

    def __init__(self, daemon: DaemonProcess, agents: Sequence[str]) -> None:
        self._daemon, self._agents = daemon, agents
        self.acknowledged: dict[str, tuple[str, float]] = {}

    def all_in(self, precision: str) -> bool:
        """Whether the last acknowledged precision of every worker is *precision*."""
        runs = {run.id: run.agent for run in self._daemon.store.unfinished()}
        for run_id, event in self._daemon.new_events(runs):
            if isinstance(event, PrecisionChanged):
                self.acknowledged[runs[run_id]] = (event.state.effective, event.time)
        found = [self.acknowledged.get(agent, ("", 0.0))[0] for agent in self._agents]
        return all(each == precision for each in found)

"""One round: runs that a fault disturbs, a run beside them, and what must hold at the end."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.e2e.torture.service import AGENTS, ALIKE, WITH_PARTS, Row, Service, event_lines

SEEDS = (3, 4)  # of runs: few, so that each has its undisturbed reference
BATCHES = 90  # of a run of the agents here
LAST_STEP = {agent: 4 * BATCHES if agent == WITH_PARTS else BATCHES for agent in AGENTS}
ENDED = frozenset({"succeeded", "no_data", "failed", "cancelled", "timed_out", "crashed"})
SUCCEEDED = frozenset({"succeeded"})


def moment(place: str, count: int, do: str, **more: Any) -> dict[str, Any]:
    """A moment of a plan; see `agent`."""
    return {"place": place, "count": count, "do": do, **more}


@dataclass(eq=False)
class TortureRun:
    """A run of this round, and what is expected of it.

    Attributes:
        plan: Folder of its plan, where a moment that was reached leaves a file.
        states: States in which it may end.
        attempts: How many attempts it may take; None: at least one.
        events_damaged: Whether its event files are not those that its workers wrote.
        precision_changed: Whether the round changes its precision.
        damaged: Files that the round has damaged, which the scan leaves out.
    """

    id: str
    agent: str
    seed: int
    plan: Path
    folder: Path
    states: frozenset[str] = SUCCEEDED
    attempts: Collection[int] | None = None
    events_damaged: bool = False
    precision_changed: bool = False
    damaged: set[Path] = field(default_factory=set)

    def attempt_folder(self, number: int | None = None) -> Path:
        """Folder of its newest attempt, or of the one with this number."""
        folder = self.folder / "attempts"
        if number is None:
            number = max((int(attempt.name) for attempt in folder.glob("*")), default=0)
        return folder / str(number)

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        """Events of *kinds* of all its attempts, oldest attempt first."""
        numbers = sorted(int(attempt.name) for attempt in (self.folder / "attempts").glob("*"))
        paths = [self.attempt_folder(number) / "events.ndjson" for number in numbers]
        return [e for path in paths for e in event_lines(path) if e["kind"] in kinds]

    def worker(self) -> int:
        """Pid of its newest worker that has reported its start."""
        return int(self.events("started")[-1]["pid"])

    def precision(self) -> str:
        """The precision that a worker of it has acknowledged last; empty before."""
        changes = self.events("precision_changed")
        return str(changes[-1]["state"]["effective"]) if changes else ""

    def checkpoints(self) -> list[Path]:
        """Its complete checkpoints, oldest first."""
        weights = self.folder.glob("checkpoints/step-*.pt")
        return sorted(path for path in weights if path.with_name(f"{path.name}.json").exists())


class Round:
    """What a fault does to a daemon.

    Args:
        rng: Decides everything that may vary.
        victim: Agent that the fault is about; None to draw one.

    Attributes:
        victim: That agent.
        neighbour: Agent of a run that nothing disturbs but a fault of the daemon.
        others: The other agents; at least one is in FP16.
        facts: What was decided and measured, for the printed line.
    """

    def __init__(self, service: Service, rng: random.Random, victim: str | None = None) -> None:
        self.service, self.rng = service, rng
        self.runs: list[TortureRun] = []
        self.facts: list[str] = []
        self.problems: list[str] = []
        self.log_may_hold: list[str] = []
        names = list(ALIKE)
        rng.shuffle(names)
        drawn, self._asked_for = names.pop(), () if victim is None else (victim,)
        self.victim = victim or drawn
        self.neighbour = next(name for name in names if AGENTS[name] == "fp32")
        names.remove(self.neighbour)
        self.others = names
        self._moments = 0

    # What a fault calls

    def start(
        self,
        *moments: dict[str, Any],
        agent: str | None = None,
        pace_seconds: float = 0.0,
        states: frozenset[str] = SUCCEEDED,
        attempts: Collection[int] | None = None,
    ) -> TortureRun:
        """Queue a run of *agent* (default: the victim) with a plan."""
        agent = agent or self.victim
        for planned in moments:
            planned["name"] = f"moment-{self._moments}"
            self._moments += 1
            shown = {k: v for k, v in planned.items() if k not in ("name", "place", "count", "do")}
            text = f"{planned['do']}@{planned['place']}{planned['count']}"
            self.note(f"{text}{shown or ''}")
        self.service.plan(agent, list(moments), pace_seconds)
        run = self.start_another(agent)
        run.states, run.attempts = states, attempts
        return run

    def start_another(self, agent: str | None = None) -> TortureRun:
        """Queue a run of *agent* (default: the victim) under the plan that it has."""
        agent, seed = agent or self.victim, self.rng.choice(SEEDS)
        return self.follow(self.service.enqueue(agent, seed), agent, seed)

    def follow(self, run_id: str, agent: str, seed: int) -> TortureRun:
        """Expect a run that was queued by itself; a *seed* without reference compares nothing."""
        plan = self.service.folder / "plans" / agent
        folder = self.service.home.absolute() / "runs" / run_id
        run = TortureRun(run_id, agent, seed, plan, folder)
        self.runs.append(run)
        return run

    def step(self, low: int = 5, high: int = BATCHES - 5) -> int:
        """A step at which something happens."""
        return self.rng.randint(low, high)

    def note(self, text: str) -> None:
        """Add to the printed line."""
        self.facts.append(text)

    def wait(self, holds: Callable[[], object], what: str) -> None:
        """Wait until *holds* is true; see `Service.wait`."""
        self.service.wait(holds, what)

    def until_reached(self, run: TortureRun, number: int = 0) -> None:
        """Wait until a worker has reached the moment with this number of the round."""
        path = run.plan / f"moment-{number}"
        self.wait(path.exists, f"{run.agent} to reach {path.name}")

    def go_on(self, run: TortureRun, number: int = 0) -> None:
        """Let the worker that holds at this moment go on."""
        (run.plan / f"moment-{number}.go").touch()

    def until_ended(self, *runs: TortureRun) -> None:
        """Wait until the store says that these runs (default: all) have ended."""
        wanted = {run.id for run in runs or self.runs}

        def ended() -> bool:
            states = {row.id: row.state for row in self.service.rows()}
            return all(states.get(run_id) in ENDED for run_id in wanted)

        try:
            self.wait(ended, "the runs to end")
        except AssertionError as error:
            rows = [(r.id, r.agent, r.state, r.error) for r in self.service.rows()]
            left = [row for row in rows if row[0] in wanted and row[2] not in ENDED]
            raise type(error)(f"{error}; unfinished: {left}") from None

    def training(self, run: TortureRun) -> None:
        """Wait until a worker of *run* has taken a first step."""
        self.wait(lambda: run.events("step_stats", "checkpoint_saved"), f"{run.agent} to train")

    def training_in_half(self, run: TortureRun) -> None:
        """Wait until a worker of *run* has taken a first step and is in FP16."""
        self.training(run)
        self.wait(lambda: run.precision() == "fp16", f"{run.agent} to be in FP16")

    def kill_worker(self, run: TortureRun, number: int) -> int:
        """Send a signal to the newest worker of *run*; its pid."""
        pid = run.worker()
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        return pid

    def check(self, holds: object, problem: str) -> None:
        """Record *problem* unless *holds*."""
        if not holds:
            self.problems.append(problem)

    def check_obeyed(self, run: TortureRun, since: float, effective: str) -> None:
        """Check that the worker of *run* acknowledges *effective* in time, see `Stage`.

        *since* is the Unix time of the flag's change. Time for which daemon and worker were ready
        to run but had no CPU does not count.
        """
        for active in self.runs:
            active.precision_changed = AGENTS[active.agent] != "fp32"
        pids = [self.service.pid, run.worker()]
        before = _seconds_without_cpu(pids)

        def acknowledged() -> list[dict[str, Any]]:
            changes = run.events("precision_changed")
            matching = [e for e in changes if e["state"]["effective"] == effective]
            return [e for e in matching if e["time"] >= since]

        self.wait(acknowledged, f"{run.agent} to acknowledge {effective}")
        starved = _seconds_without_cpu(pids) - before
        seconds = acknowledged()[0]["time"] - since
        self.note(f"obeyed {effective} in {seconds:.2f} s ({starved:.2f} s without a CPU)")
        self.check(
            seconds - starved <= self.service.stage.obey_seconds,
            f"{run.agent} acknowledged {effective} after {seconds:.2f} s, "
            f"of which {starved:.2f} s without a CPU",
        )

    def row(self, run: TortureRun) -> Row:
        """What the store has of *run*."""
        return self.service.row(run.id)

    def in_half(self) -> str:
        """An agent in FP16 beside neighbour and victim, or the victim that was asked for."""
        free = [name for name in self._asked_for if all(run.agent != name for run in self.runs)]
        return next(name for name in (*free, *self.others) if AGENTS[name] == "fp16")

    def sleep(self, low: float, high: float) -> None:
        """Wait a moment whose length the seed decides."""
        time.sleep(self.rng.uniform(low, high))


def _seconds_without_cpu(pids: Collection[int | None]) -> float:
    """Seconds for which these processes' main threads were ready to run and did not run."""
    total = 0
    for pid in pids:
        with suppress(OSError, ValueError, IndexError, psutil.Error):
            total += int(Path(f"/proc/{pid}/schedstat").read_text().split()[1])
    return total / 1e9

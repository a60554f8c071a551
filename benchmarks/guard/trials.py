"""Planted faults and healthy agents through the real daemon: what its guard made of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.guard.agents import Plan
from benchmarks.guard.daemon import FaultDaemon
from genesis_fp16.domain.guard import Decision, GuardState
from genesis_fp16.domain.run import RunState
from infrastructure.events.event import PhaseStarted

METRIC_PAIRS = 10  # with so many at the latest a drift of the held-out metric must be found
SETTINGS: Mapping[str, object] = {
    "GENESIS_SLOTS": 2,
    "GENESIS_BASELINE_INTERVAL_STEPS": 100,
    "GENESIS_BASELINE_EVERY_RUNS": 1,
    "GENESIS_CHECKPOINT_INTERVAL_SECONDS": 0.1,
    "GENESIS_RETRY_BACKOFF_SECONDS": 0.2,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What became of one agent.

    Attributes:
        agent: Its name.
        expected, fired: Triggers; empty for none.
        onset: Step at which the fault began.
        step: At which the guard decided, of the run under way.
        seconds: From the beginning of that run's training to the decision.
        runs: In half precision up to the decision, or in all.
        said: The guard's reason.
    """

    agent: str
    expected: str
    fired: str = ""
    onset: int = 0
    step: int | None = None
    seconds: float | None = None
    runs: int = 0
    said: str = ""

    @property
    def right(self) -> bool:
        """Whether the guard did what it should."""
        return self.fired == self.expected


def try_agents(
    plans: Mapping[str, Plan],
    folder: Path,
    *,
    pairs: int,
    seconds: float,
    settings: Mapping[str, object],
) -> list[Outcome]:
    """Run *plans* through one daemon until the guard has decided or had its chance to.

    Args:
        plans: By agent.
        folder: For the daemon; made if it is missing.
        pairs: Runs in half precision, each with its twin in FP32, that an agent has which the
            guard leaves alone.
        seconds: That all of it may take.
        settings: Beyond `SETTINGS`.

    Raises:
        DaemonFailedError: It took longer.
    """
    again = {
        f"GENESIS_AGENTS__{name.replace('-', '_').upper()}__SCHEDULE": '"every 1s"'
        for name, plan in plans.items()
        if _pairs(plan, pairs) > 1
    }
    daemon = FaultDaemon(folder, list(plans), {**SETTINGS, **again, **settings})
    with daemon.serving():
        daemon.wait_for(
            lambda: all(_is_over(daemon, *item, pairs) for item in plans.items()),
            seconds,
            "to be done with every agent",
        )
        return [_outcome(daemon, name, plan) for name, plan in plans.items()]


def _pairs(plan: Plan, pairs: int) -> int:
    """A drift of many runs needs many; any other fault shows in one, or not at all."""
    if plan.expected == "metric_drift":
        return METRIC_PAIRS
    return 1 if plan.expected else pairs


def _is_over(daemon: FaultDaemon, agent: str, plan: Plan, pairs: int) -> bool:
    tripped = _first_trip(daemon, agent) is not None
    return tripped or len(daemon.store.compared.pairs(agent)) >= _pairs(plan, pairs)


def _first_trip(daemon: FaultDaemon, agent: str) -> Decision | None:
    decisions = daemon.store.guard.history(agent, limit=1000)
    trips = [decision for decision in decisions if decision.state is GuardState.TRIPPED]
    return trips[-1] if trips else None


def _outcome(daemon: FaultDaemon, agent: str, plan: Plan) -> Outcome:
    trip = _first_trip(daemon, agent)
    runs = [run for run in daemon.store.runs(agent, limit=1000) if run.baseline_of is None]
    if trip is None or trip.trigger is None:
        done = sum(run.state is RunState.SUCCEEDED for run in runs)
        return Outcome(agent=agent, expected=plan.expected, onset=plan.onset, runs=done)
    begun = [
        event.time
        for event in daemon.events(trip.run_id)
        if isinstance(event, PhaseStarted) and event.phase == "train"
    ]
    return Outcome(
        agent=agent,
        expected=plan.expected,
        fired=trip.trigger,
        onset=plan.onset,
        step=trip.step,
        seconds=round(trip.at - min(begun), 2) if begun else None,
        runs=sum(run.created_at <= trip.at for run in runs),
        said=trip.reason,
    )

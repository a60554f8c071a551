"""Run faulty and healthy agents in the real daemon, and record the guard's decision on each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.guard.agents import Plan
from benchmarks.guard.daemon import DaemonProcess
from genesis_fp16.domain.guard import Decision, GuardState
from genesis_fp16.domain.run import RunState
from infrastructure.events.event import PhaseStarted

METRIC_PAIRS = 10  # a drift of the held-out metric must be found within this many
SETTINGS: Mapping[str, object] = {
    "GENESIS_SLOTS": 2,
    "GENESIS_BASELINE_INTERVAL_STEPS": 100,
    "GENESIS_BASELINE_EVERY_RUNS": 1,
    "GENESIS_CHECKPOINT_INTERVAL_SECONDS": 0.1,
    "GENESIS_RETRY_BACKOFF_SECONDS": 0.2,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialResult:
    """Result of one agent.

    Attributes:
        agent: Name of the agent.
        expected, fired: Triggers; empty for none.
        onset: Step at which the fault began.
        step: Step of the run at which the guard decided.
        seconds: Seconds from the start of that run's training to the decision.
        runs: Runs in half precision up to the decision, or in all.
        reason: The guard's reason.
    """

    agent: str
    expected: str
    fired: str = ""
    onset: int = 0
    step: int | None = None
    seconds: float | None = None
    runs: int = 0
    reason: str = ""

    @property
    def is_correct(self) -> bool:
        """Whether the guard fired the expected trigger, or none if none is expected."""
        return self.fired == self.expected


def run_trials(
    plans: Mapping[str, Plan],
    folder: Path,
    *,
    pairs: int,
    seconds: float,
    settings: Mapping[str, object],
) -> list[TrialResult]:
    """Run *plans* in one daemon until the guard has decided or had enough runs to decide.

    Args:
        plans: Plans by agent.
        folder: Folder of the daemon; created if missing.
        pairs: Runs in half precision, each with an FP32 baseline run, of an agent that the guard
            leaves alone.
        seconds: Time limit of all agents together.
        settings: Settings besides `SETTINGS`.

    Raises:
        DaemonFailedError: The agents took longer.
    """
    schedules = {
        f"GENESIS_AGENTS__{name.replace('-', '_').upper()}__SCHEDULE": '"every 1s"'
        for name, plan in plans.items()
        if _pairs(plan, pairs) > 1
    }
    daemon = DaemonProcess(folder, list(plans), {**SETTINGS, **schedules, **settings})
    with daemon.serving():
        daemon.wait_for(
            lambda: all(_is_finished(daemon, *item, pairs) for item in plans.items()),
            seconds,
            "to finish all agents",
            poll_seconds=1.0,  # each look queries the database for every agent
        )
        return [_result(daemon, name, plan) for name, plan in plans.items()]


def _pairs(plan: Plan, pairs: int) -> int:
    """Return the pairs to run: drift of the metric needs many; any other fault shows in one."""
    if plan.expected == "metric_drift":
        return METRIC_PAIRS
    return 1 if plan.expected else pairs


def _is_finished(daemon: DaemonProcess, agent: str, plan: Plan, pairs: int) -> bool:
    tripped = _first_trip(daemon, agent) is not None
    return tripped or len(daemon.store.compared.pairs(agent)) >= _pairs(plan, pairs)


def _first_trip(daemon: DaemonProcess, agent: str) -> Decision | None:
    decisions = daemon.store.guard.history(agent, limit=1000)
    trips = [decision for decision in decisions if decision.state is GuardState.TRIPPED]
    return trips[-1] if trips else None


def _result(daemon: DaemonProcess, agent: str, plan: Plan) -> TrialResult:
    trip = _first_trip(daemon, agent)
    runs = [run for run in daemon.store.runs(agent, limit=1000) if run.baseline_of is None]
    if trip is None or trip.trigger is None:
        done = sum(run.state is RunState.SUCCEEDED for run in runs)
        return TrialResult(agent=agent, expected=plan.expected, onset=plan.onset, runs=done)
    started = [
        event.time
        for event in daemon.events(trip.run_id)
        if isinstance(event, PhaseStarted) and event.phase == "train"
    ]
    return TrialResult(
        agent=agent,
        expected=plan.expected,
        fired=trip.trigger,
        onset=plan.onset,
        step=trip.step,
        seconds=round(trip.at - min(started), 2) if started else None,
        runs=sum(run.created_at <= trip.at for run in runs),
        reason=trip.reason,
    )

"""A storm: 1,000 runs become due in one second, and real workers take them one after the other.

Meanwhile one more agent trains all the time, the flag is changed there and back, and a scraper
reads the metrics. Afterwards the store and the events of every worker tell what happened.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Literal

from benchmarks.many_agents.storm_agents import STEADY
from benchmarks.many_agents.storm_daemon import Scrape, StormDaemon
from genesis_fp16.domain.run import Run
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store
from infrastructure.events import Event, EventTail
from infrastructure.events.event import PrecisionChanged, StepStats

Forked = Literal["nothing", "probes", "all"]
ASKED = ("/api/agents", "/api/runs?limit=50")
LIMIT_SECONDS = 2.0
_IDLE_ANSWERS = 10
_LOOK_SECONDS = 1.0  # between two looks into the store
_NOTICE_SECONDS = 15.0  # for the daemon to read schedules before they are due
_MEBI = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class Flip:
    """A change of the flag.

    Attributes:
        at: Unix time of the change.
        to: Precision from then on.
    """

    at: float
    to: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Obedience:
    """How the flag was obeyed.

    Attributes:
        flips: Changes of the flag.
        seconds: From a change until a worker that trained then had the other precision, for each.
        late_windows: Windows of steps with one in FP16 that began more than two seconds after the
            flag had demanded FP32.
    """

    flips: int
    seconds: Sequence[float]
    late_windows: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a storm of due agents consists of, and how long it is watched.

    Attributes:
        agents: Number of agents.
        due: Number of those that become due.
        finish: Number of runs with whose end the watch ends, too.
        slots: Workers at once.
        idle_seconds: Time for which the idle daemon is watched.
        flip_seconds: Time between two changes of the flag.
        scrape_seconds: Time between two scrapes, with which the control API is asked, too.
        forked: What is forked; the idle daemon is always one that was started.
    """

    agents: int
    due: int
    finish: int
    slots: int
    idle_seconds: float
    flip_seconds: float
    scrape_seconds: float
    forked: Forked


@dataclass(frozen=True, kw_only=True, slots=True)
class Idle:
    """The daemon alone, while one run trains and nothing is due.

    Attributes:
        cpu_share: CPU time divided by wall time.
        bytes, api_bytes: Resident memory of the daemon, and of the process of its control API.
        scrapes: Scrapes.
        answers: Seconds of the control API's answers by path.
    """

    cpu_share: float
    bytes: int
    api_bytes: int
    scrapes: Sequence[Scrape]
    answers: Mapping[str, Sequence[float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Storm:
    """What was measured.

    Attributes:
        plan: How it was measured.
        ready_seconds: From the daemon's start until it knew all agents, by a probe of each.
        idle: The daemon before the storm.
        scrapes: Scrapes during the storm.
        answers: Seconds of the control API's answers by path, during the storm.
        lags: From due to queued, of each run.
        seconds: From due until the last run that was watched had ended.
        states: Number of runs by state then.
        out_of_order: Runs that started after one that was due later, or queued later.
        obedience: How the flag was obeyed.
    """

    plan: Plan
    ready_seconds: float
    idle: Idle
    answers: Mapping[str, Sequence[float]]
    scrapes: Sequence[Scrape]
    lags: Sequence[float]
    seconds: float
    states: Counter[str]
    out_of_order: int
    obedience: Obedience

    def __str__(self) -> str:
        plan, flag, ticks = (
            self.plan,
            self.obedience,
            [each.tick_age_seconds for each in self.scrapes],
        )
        rows = {
            "agents": f"{plan.agents:,}; {plan.due:,} due, {plan.slots} slots for them",
            "watched until the end of": f"{plan.finish:,} runs",
            "forked, not started": plan.forked,
            "all agents probed": f"{self.ready_seconds:.0f} s",
            "idle, share of one core": f"{self.idle.cpu_share:.2%}",
            "idle, resident": f"{self.idle.bytes / _MEBI:.0f} MiB",
            "idle, scrape": _scrapes(self.idle.scrapes),
            "idle, API process resident": f"{self.idle.api_bytes / _MEBI:.0f} MiB",
            **{f"idle, {path}": _percentiles(each) for path, each in self.idle.answers.items()},
            "storm, scrape": _scrapes(self.scrapes),
            **{f"storm, {path}": _percentiles(each) for path, each in self.answers.items()},
            "storm, time since the last round": _percentiles(ticks),
            "due until queued": _percentiles(self.lags),
            "due until the last of them": f"{self.seconds:.0f} s",
            "runs": ", ".join(f"{count} {state}" for state, count in self.states.items()),
            "started out of order": str(self.out_of_order),
            "changes of the flag": str(flag.flips),
            "flag until obeyed": f"{_percentiles(flag.seconds)}, {len(flag.seconds)} workers",
            f"FP16 after {LIMIT_SECONDS:.0f} s": f"{flag.late_windows} windows of steps",
        }
        width = max(map(len, rows))
        return "\n".join(f"{name.ljust(width)}  {value}" for name, value in rows.items())


def measure_storm(folder: Path, plan: Plan) -> Storm:
    """Start a daemon, let agents be due at once, and watch until the last run has ended.

    Args:
        folder: Empty folder.
        plan: What to do.
    """
    agents, forked = plan.agents, plan.forked
    names = [f"agent-{number:04}" for number in range(agents)]
    settings: dict[str, object] = {
        "ENABLE_FP16_TRAINING": "true",
        "GENESIS_HOME": folder / "home",
        "GENESIS_CPU_HALF": "true",
        "GENESIS_DEVICE": "cpu",
        "GENESIS_LOG_FORMAT": "json",
        "GENESIS_SLOTS": plan.slots + 1,
        "GENESIS_AGENTS__SE_DARWIN__ENABLED": "false",
    }
    daemon = StormDaemon(folder=folder, names=[STEADY, *names], settings=settings)
    daemon.install()
    daemon.configure()
    storm = partial(_watch, daemon, names[: plan.due], plan)
    begun = time.monotonic()
    with daemon.serving(forked=forked != "nothing"):
        daemon.wait_for_agents(agents + 1)
        ready_seconds = time.monotonic() - begun
        if forked == "nothing":
            idle, watched = _watch_idle(daemon, plan.idle_seconds), storm()
    if forked != "nothing":  # what probes have found is kept
        with daemon.serving(forked=False):
            daemon.wait_for_agents(agents + 1)
            idle = _watch_idle(daemon, plan.idle_seconds)
            if forked == "probes":
                watched = storm()
    if forked == "all":
        with daemon.serving(forked=True):
            daemon.wait_for_agents(agents + 1)
            watched = storm()
    runs = watched.runs
    ended = max(run.finished_at or 0.0 for run in runs)
    return Storm(
        plan=plan,
        ready_seconds=ready_seconds,
        idle=idle,
        scrapes=watched.scrapes,
        answers=watched.answers,
        lags=[run.created_at - run.due_at for run in runs],
        seconds=ended - min(run.due_at for run in runs),
        states=Counter(run.state.value for run in runs),
        out_of_order=count_out_of_order(runs),
        obedience=judge(watched.flips, _attempts(daemon.home)),
    )


def _watch_idle(daemon: StormDaemon, seconds: float) -> Idle:
    """Watch the daemon's own process: its workers are others."""
    before, begun = daemon.process.cpu_times(), time.monotonic()
    time.sleep(seconds)
    after = daemon.process.cpu_times()
    spent = after.user - before.user + after.system - before.system
    return Idle(
        cpu_share=spent / (time.monotonic() - begun),
        bytes=daemon.process.memory_info().rss,
        api_bytes=daemon.api_bytes(),
        scrapes=[daemon.scrape() for _ in range(_IDLE_ANSWERS)],
        answers={path: [daemon.ask(path) for _ in range(_IDLE_ANSWERS)] for path in ASKED},
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Watched:
    runs: list[Run]
    flips: list[Flip]
    scrapes: list[Scrape]
    answers: Mapping[str, list[float]]


def _watch(daemon: StormDaemon, names: Sequence[str], plan: Plan) -> _Watched:
    """Let the storm begin; change the flag, scrape and ask until it is over."""
    due = _next_minute(time.time() + _NOTICE_SECONDS)
    at = datetime.fromtimestamp(due, UTC)
    flips, scrapes = [], []
    answers: dict[str, list[float]] = {path: [] for path in ASKED}
    with closing(Store.open(Settings(home=daemon.home))) as store:
        before = {run.id for run in store.runs(limit=10)}  # of the steady agent
        daemon.configure(
            **{
                f"GENESIS_AGENTS__{name.replace('-', '_').upper()}__SCHEDULE": (
                    f"cron {at.minute} {at.hour} * * *"
                )
                for name in names
            }
        )
        to, flip_at, scrape_at = "fp32", due, due
        runs: list[Run] = []
        while sum(run.finished for run in runs) < plan.finish:
            if time.time() >= flip_at:
                flag = "false" if to == "fp32" else "true"
                flips.append(Flip(at=daemon.configure(ENABLE_FP16_TRAINING=flag), to=to))
                to, flip_at = "fp16" if to == "fp32" else "fp32", time.time() + plan.flip_seconds
            if time.time() >= scrape_at:
                scrape_at = time.time() + plan.scrape_seconds
                scrapes.append(daemon.scrape())
                for path in ASKED:
                    answers[path].append(daemon.ask(path))
            found = store.runs(limit=2 * len(names))
            runs = [each for each in found if each.id not in before and each.agent != STEADY]
            time.sleep(_LOOK_SECONDS)
    return _Watched(runs=runs, flips=flips, scrapes=scrapes, answers=answers)


def _next_minute(after: float) -> float:
    return 60.0 * (after // 60.0 + 1.0)


def count_out_of_order(runs: Iterable[Run]) -> int:
    """Number of *runs* that started after one that comes later in the queue."""
    started = sorted((run for run in runs if run.started_at), key=lambda run: run.started_at or 0.0)
    latest, count = (0.0, 0.0, ""), 0
    for run in started:
        place = (run.due_at, run.created_at, run.id)
        count += place < latest
        latest = max(latest, place)
    return count


def judge(flips: Sequence[Flip], attempts: Iterable[Sequence[Event]]) -> Obedience:
    """Judge by the events of every attempt how the flag was obeyed."""
    ends = [flip.at for flip in flips[1:]] + [float("inf")]
    seconds: list[float] = []
    late = 0
    for events in attempts:
        for flip, end in zip(flips, ends, strict=False):
            seconds += _acknowledged(flip, end, events)
            if flip.to == "fp32":
                late += sum(
                    each.fp16 > 0 and flip.at + LIMIT_SECONDS < each.time - each.seconds < end
                    for each in events
                    if isinstance(each, StepStats)
                )
    return Obedience(flips=len(flips), seconds=seconds, late_windows=late)


def _acknowledged(flip: Flip, end: float, events: Sequence[Event]) -> list[float]:
    """Seconds until an attempt that trained when the flag changed acknowledged it, if it did."""
    changes = [each for each in events if isinstance(each, PrecisionChanged)]
    if not any(each.time < flip.at for each in changes):
        return []  # it did not train yet
    taken = (
        each.time - flip.at
        for each in changes
        if flip.at <= each.time < end and each.state.effective == flip.to
    )
    return [seconds] if (seconds := next(taken, None)) is not None else []


def _attempts(home: Path) -> Iterable[Sequence[Event]]:
    """Events of every attempt."""
    for path in sorted(home.glob("runs/*/attempts/*/events.ndjson")):
        yield list(EventTail(path).read())


def _scrapes(scrapes: Sequence[Scrape]) -> str:
    largest = max(each.bytes for each in scrapes) / 1e6
    return f"{largest:.1f} MB, {_percentiles([each.seconds for each in scrapes])}"


def _percentiles(seconds: Sequence[float]) -> str:
    if not seconds:
        return "none"
    ordered, last = sorted(seconds), len(seconds) - 1
    median, high = ordered[len(ordered) // 2], ordered[min(last, len(ordered) * 99 // 100)]
    return f"median {median:.3f} s, p99 {high:.3f} s, most {ordered[-1]:.3f} s"

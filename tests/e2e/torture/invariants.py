"""What must hold after each round, checked against store, files and process table."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import psutil

from infrastructure.files import ABANDONED_SECONDS
from tests.e2e.torture.round import BATCHES, ENDED, LAST_STEP, Round, TortureRun
from tests.e2e.torture.service import AGENTS, WITH_PARTS, Row, Service, event_lines

Weights = Mapping[str, object]
References = Mapping[tuple[bool, int, str], Weights]  # with parts?, seed and precision to weights

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}$")
_BAD_LOG_EVENTS = ("round_failed", "run_handling_failed", "listener_failed", "Traceback")
_PATIENCE_SECONDS = 10.0


def check_round(
    played: Round, references: References, before: Snapshot, known: set[str]
) -> list[str]:
    """All problems after a round whose runs have ended.

    Args:
        before: What was counted when the round began.
        known: Ids of the runs of earlier rounds.
    """
    service = played.service
    rows = {row.id: row for row in service.rows()}
    problems = list(played.problems)
    expected = {run.id for run in played.runs}
    problems += [f"run {run_id} is lost" for run_id in sorted(expected - rows.keys())]
    extra = sorted(rows.keys() - expected - known)
    problems += [f"run {run_id} of {rows[run_id].agent} was not asked for" for run_id in extra]
    for run in played.runs:
        if run.id in rows:
            problems += _prefixed(run, _check_run(run, rows[run.id], references))
            problems += _prefixed(run, _check_files(run, rows[run.id]))
    problems += _check_exclusion(service, rows)
    problems += _check_processes(service)
    problems += _check_agents(service, {run.agent for run in played.runs}, before.at)
    problems += _check_log(played, service.log[before.log_length :])
    if before.pid == service.pid and before.starts == service.starts:
        problems += _check_metrics(played, before.steps, service)
    return problems


class Snapshot:
    """What is counted at the beginning of a round."""

    def __init__(self, service: Service) -> None:
        self.pid, self.starts = service.pid, service.starts
        self.steps = service.steps_counted()
        self.log_length = len(service.log)
        self.at = time.time()


def weights_of(run_folder: Path) -> Weights:
    """What the agent has published; with parts, also the state in the last checkpoint."""
    weights: Weights = json.loads((run_folder / "weights.json").read_text())
    return weights


def _prefixed(run: TortureRun, problems: Iterator[str]) -> list[str]:
    return [f"run {run.id} of {run.agent}: {problem}" for problem in problems]


def _check_run(run: TortureRun, row: Row, references: References) -> Iterator[str]:
    if row.state not in run.states:
        yield f"is {row.state}, not {' or '.join(sorted(run.states))}: {row.error}"
    numbers = [attempt["number"] for attempt in row.attempts]
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"its attempts are numbered {numbers}"
    if run.attempts is not None and len(numbers) not in run.attempts:
        endings = [attempt["ending"] for attempt in row.attempts]
        yield f"it took {len(numbers)} attempts, not {sorted(run.attempts)}: {endings}"
    if row.state in ENDED and any(attempt["finished_at"] is None for attempt in row.attempts):
        yield "it has ended, but an attempt of it has not"
    if not run.events_damaged:
        yield from _check_events(run, row)
    if row.state == "succeeded":
        yield from _check_weights(run, references)


def _check_events(run: TortureRun, row: Row) -> Iterator[str]:
    """Steps in the store are those in the event files, each counted once."""
    half = last = 0
    precisions = set()
    for attempt in row.attempts:
        path = run.attempt_folder(attempt["number"]) / "events.ndjson"
        begin, attempted = 0, 0
        size = path.read_bytes().rfind(b"\n") + 1 if path.exists() else 0
        for event in event_lines(path):
            match event["kind"]:
                case "unreadable":
                    yield f"{path} has a line that is not an event: {event['line']}"
                case "resumed":
                    begin = last = event["step"]
                case "step_stats":
                    names = ("applied", "overflow", "nonfinite_loss", "no_gradient")
                    steps = sum(event[name] for name in names)
                    attempted += steps
                    last = event["step"]
                    precisions.add(event["precision"])
                    half += 0 if event["precision"] == "fp32" else steps
                    if begin + attempted != last:
                        yield (
                            f"attempt {attempt['number']} began at step {begin} and reported "
                            f"{attempted} steps, but is at step {last}"
                        )
        if attempt["events_offset"] != size:
            yield (
                f"the daemon has read {attempt['events_offset']} of {size} bytes of complete lines "
                f"of attempt {attempt['number']}"
            )
    if row.half_steps != half:
        yield f"the store has {row.half_steps} steps in half precision, its events {half}"
    steps = _last_step(run)
    if row.state == "succeeded" and not row.steps == last == steps:
        yield f"the store has {row.steps} steps, its events {last}, the job {steps}"


def _last_step(run: TortureRun) -> int:
    return LAST_STEP.get(run.agent, BATCHES)


def _check_weights(run: TortureRun, references: References) -> Iterator[str]:
    try:
        weights = weights_of(run.folder)
    except (OSError, ValueError) as error:
        yield f"has succeeded, but its weights cannot be read: {error}"
        return
    if weights["steps"] != _last_step(run):
        yield f"published after {weights['steps']} of {_last_step(run)} steps"
    stats = [] if run.events_damaged else run.events("step_stats")
    precisions = {event["precision"] for event in stats}
    if run.events_damaged and not run.precision_changed:
        precisions = {AGENTS[run.agent]}
    if len(precisions) == 1:
        reference = references.get((run.agent == WITH_PARTS, run.seed, *precisions))
        if reference is not None and weights != reference:
            yield f"its weights differ from those of an undisturbed run (seed {run.seed})"


def _check_files(run: TortureRun, row: Row) -> Iterator[str]:
    """A run that was killed and not tried again may leave a file half-written, for retention."""
    for path in sorted(run.folder.rglob("*")):
        if path in run.damaged or not run.damaged.isdisjoint(path.parents) or path.is_symlink():
            continue
        if _TEMPORARY.match(path.name):
            if row.state == "succeeded":
                yield f"{path} is left half-written"
        elif path.suffix == ".json":
            with suppress(FileNotFoundError):
                yield from _check_json(path)
        elif path.suffix == ".pt" and path.parent.name == "checkpoints":
            yield from _check_checkpoint(path, row)


def _check_json(path: Path) -> Iterator[str]:
    try:
        json.loads(path.read_bytes())
    except ValueError as error:
        yield f"{path} is not JSON: {error}"


def _check_checkpoint(path: Path, row: Row) -> Iterator[str]:
    manifest = path.with_name(f"{path.name}.json")
    if not manifest.exists():
        if row.state == "succeeded":
            yield f"{path} has no manifest"
        return
    with suppress(ValueError, FileNotFoundError):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if json.loads(manifest.read_text())["sha256"] != digest:
            yield f"{path} is torn: its manifest has another hash"


def _check_exclusion(service: Service, rows: Mapping[str, Row]) -> Iterator[str]:
    for twice in service.folder.glob("plans/*/active-twice-*"):
        yield f"two workers of {twice.parent.name} were active at once: {twice.name}"
        twice.unlink()
    spans: dict[str, list[tuple[float, float, str]]] = {}
    for row in rows.values():
        for attempt in row.attempts:
            if attempt["finished_at"] is not None:
                span = (attempt["started_at"], attempt["finished_at"], row.id)
                spans.setdefault(row.agent, []).append(span)
    for agent, of_agent in spans.items():
        of_agent.sort()
        for (_, end, earlier), (begin, _, later) in pairwise(of_agent):
            if begin < end - 0.001:
                yield f"attempts of {agent} overlap in the store: {earlier} and {later}"


def _check_processes(service: Service) -> Iterator[str]:
    for process in service.lasting_strangers(_PATIENCE_SECONDS):
        with suppress(psutil.Error):
            yield (
                f"process {process.pid} is left: {process.status()}, parent {process.ppid()}, "
                f"{' '.join(process.cmdline())[:120]}"
            )
    if service.status() is not None:
        yield f"the daemon has ended with {service.status()}"


def _check_agents(service: Service, ran: set[str], begun_at: float) -> Iterator[str]:
    """Temporary files of killed writers are removed by the next run, a minute later at most."""
    for agent in sorted(ran):
        folder = service.home / "agents" / agent
        for path in folder.glob(".*"):
            old = path.lstat().st_mtime < begun_at - ABANDONED_SECONDS
            if old and _TEMPORARY.match(path.name):
                yield f"{path} is left half-written"
        if (folder / "published.json").exists():
            yield from _check_json(folder / "published.json")


def _check_log(played: Round, new: str) -> Iterator[str]:
    for line in new.splitlines():
        bad = any(event in line for event in _BAD_LOG_EVENTS)
        if bad and not any(event in line for event in played.log_may_hold):
            yield f"the daemon's log has: {line[:600]}"


def _check_metrics(played: Round, before: Mapping[str, float], service: Service) -> Iterator[str]:
    if any(run.events_damaged for run in played.runs):
        return
    counted = service.steps_counted()
    for agent in AGENTS:
        names = ("applied", "overflow", "nonfinite_loss", "no_gradient")
        events = [e for r in played.runs if r.agent == agent for e in r.events("step_stats")]
        attempted = sum(event[name] for event in events for name in names)
        if counted[agent] - before[agent] != attempted:
            yield (
                f"the metrics of {agent} have counted {counted[agent] - before[agent]:g} steps, "
                f"its events {attempted}"
            )

"""``genesis-fp16 precision explain``: who decided an agent's precision, when, on what numbers."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import typer

from genesis_fp16.cli.arguments import check_agent_name
from genesis_fp16.cli.output import JsonFlag, print_json, print_line, print_table
from genesis_fp16.cli.settings import load_command_settings
from genesis_fp16.cli.store import open_existing_store
from genesis_fp16.domain.moments import moment
from genesis_fp16.domain.precision import DECIDED_BY
from genesis_fp16.settings import Settings
from infrastructure.agent_contract.parts import part_place

if TYPE_CHECKING:
    from genesis_fp16.domain.guard import Decision
    from genesis_fp16.store import Store

_RUN_FIELDS = ("id", "number", "state", "precision", "steps", "half_steps")
_DECISION_COLUMNS = ("state", "trigger", "level", "actor", "run_id", "reason")
_READ_BYTES = 8 << 20  # of an attempt's events, the last ones
_SHOWN_DECISIONS, _SHOWN_RUNS, _SHOWN_SCALES = 8, 5, 8


def explain(agent: str, as_json: JsonFlag = False) -> None:
    """Show who decided the agent's precision, when, on what numbers, and how to undo it."""
    known = load_command_settings()
    settings = known.location
    with open_existing_store(settings) as store:
        check_agent_name(agent, store)
        answer = {"agent": agent, **(_collect(settings, store, agent) if store else {})}
    if as_json:
        print_json(answer)
        return
    if not answer.get("run") and not answer.get("decisions"):
        print_line(f"{agent} has not run yet in {settings.home}: see genesis-fp16 agents")
        for line in _overrides(answer):
            print_line(line)
        return
    for line in (
        *_now(answer),
        *_lost(answer),
        *_guard(known.in_force, answer),
        *_overrides(answer),
    ):
        print_line(line)
    _print_decisions(answer["decisions"])
    _print_comparison(answer["outcomes"])


def _collect(settings: Settings, store: Store, agent: str) -> dict[str, Any]:
    """Everything that the store and the evidence say about the agent."""
    run = next((run for run in store.runs(agent) if run.precision), None)
    decisions = store.guard.history(agent, limit=50)
    trips = [each for each in decisions if each.state == "tripped" and not each.descended]
    last_trip = next((each for each in trips if each.tripped), trips[0] if trips else None)
    home = settings.home.absolute()
    evidence, problem = _evidence(home, last_trip) if last_trip else (None, "")
    return {
        "run": {name: getattr(run, name) for name in _RUN_FIELDS} if run else None,
        "decisions": [
            {
                **asdict(decision),
                "descended": decision.descended,
                "tripped": decision is last_trip,
            }
            for decision in decisions
        ],
        "evidence": evidence,
        "evidence_file": str(home / last_trip.evidence) if last_trip else None,
        "evidence_trouble": problem,
        "telemetry": _telemetry(store, home, run.id, settings) if run else None,
        **_removed(store, home, last_trip.run_id if last_trip else ""),
        "overrides": [
            asdict(override)
            for override in store.overrides.in_force()
            if override.agent in (None, agent)
        ],
        "audit": [
            asdict(change)
            for change in store.overrides.audit(limit=200)
            if change.subject in (agent, "all")
        ],
        "outcomes": [
            {**asdict(result), "value": None if math.isnan(result.value) else result.value}
            for result in store.compared.results(agent)
        ],
    }


def _telemetry(store: Store, home: Path, run_id: str, settings: Settings) -> dict[str, Any]:
    """The last diagnosis of each cause of an overflow in the run, and its last measurement."""
    from genesis_fp16.domain.attempt import events_path
    from genesis_fp16.domain.proposals import LastProposal
    from genesis_fp16.guard.detectors import AgentObserver, scaling_of
    from infrastructure.events import EventTail
    from infrastructure.events.event import LostUpdatesMeasured, OverflowDiagnosed, RungSearched

    overflows: dict[str, dict[str, Any]] = {}
    lost, searched, trouble = None, None, ""
    observer, proposal = AgentObserver(), LastProposal()
    for attempt in store.attempts(run_id):
        path = events_path(home, attempt)
        try:
            size = path.stat().st_size if path.exists() else 0
            for event in EventTail(path, max(0, size - _READ_BYTES)).read():
                observer.observe(
                    run_id, event, settings, on_probation=False, scaling=scaling_of(settings)
                )
                proposal.note(event)
                if isinstance(event, LostUpdatesMeasured):
                    lost = event.model_dump(mode="json")
                elif isinstance(event, RungSearched):
                    searched = event.model_dump(mode="json")
                elif isinstance(event, OverflowDiagnosed):
                    overflows[event.cause] = event.model_dump(mode="json")
        except OSError as error:
            trouble = str(error)
    return {
        "overflows": list(overflows.values()),
        "lost_updates": lost,
        "search": searched and {**searched, "proposal": proposal.text},
        "left_to_scale": observer.left_to_scale,
        "trouble": trouble,
    }


def _evidence(home: Path, decision: Decision) -> tuple[dict[str, Any] | None, str]:
    """The evidence bundle, or None and why it cannot be read."""
    from genesis_fp16.guard.evidence import EvidenceError, read_evidence

    try:
        bundle = read_evidence(home, decision)
    except EvidenceError as error:
        return None, str(error)
    return (bundle.model_dump(exclude_unset=True), "") if bundle else (None, "")


def _removed(store: Store, home: Path, run_id: str) -> dict[str, str]:
    """Why the run's folder, or the weights in it, were removed; empty if they were not."""
    from genesis_fp16.runs.run_folder import describe_removal, weights_removal_reason

    run, folder = store.run(run_id), home / "runs" / run_id
    return {
        "folder_removed": describe_removal(folder, run.folder_removed) if run else "",
        "weights_removed": weights_removal_reason(folder) if run else "",
    }


def _now(answer: dict[str, Any]) -> Iterator[str]:
    run = answer["run"]
    if run is None:
        yield f"{answer['agent']}: no worker has acknowledged a precision yet."
        return
    state = run["precision"]
    effective, requested, reason = state["effective"], state["requested"], state["reason"]
    asked = "" if effective == requested else f"; {requested.upper()} was requested"
    which = f"run {run['id']}, number {run['number']}, {run['state']}"
    yield f"{answer['agent']} last trained in {effective.upper()} ({which}){asked}."
    yield f"Who decided   {DECIDED_BY.get(reason, reason)} (reason {reason})"
    if roles := state.get("roles"):
        yield f"Roles         {roles.replace(',', ' ')} (store/compute/out)"
    if modules := state.get("modules"):
        yield f"Raised        {modules.replace(',', ' ')} (modules in FP32, by the guard)"
    if parts := state.get("parts"):
        yield f"Parts         {parts.replace(',', ' ')} (others as the run, by the guard)"


def _lost(answer: dict[str, Any]) -> Iterator[str]:
    """Why steps overflowed in the run, and what was lost without an overflow."""
    telemetry = answer["telemetry"]
    if telemetry is None:
        return
    found = (telemetry["search"] or {}).get("cause", "unfinished")
    searched = found != "unfinished"
    for overflow in telemetry["overflows"]:
        if found == "roles" and overflow["cause"] == "fp32":
            continue  # the losses of batches that the role in half precision had spoilt
        cause = _cause(answer["agent"], overflow, searched=searched)
        yield f"Overflow      step {overflow['step']}: {cause}"
    if telemetry["trouble"]:
        yield f"No telemetry  {telemetry['trouble']}"
    yield from _left_to_scale(**telemetry["left_to_scale"])
    if search := telemetry["search"]:
        yield f"Search        step {search['step']}: {search['reason']}"
        if search["proposal"] not in ("", search["reason"]):
            yield f"Proposal      {search['proposal']}"
    lost = telemetry["lost_updates"]
    if lost is None:
        return
    if lost["zero"] is not None:
        numbers = (
            f"{lost['zero']:.2%} of the gradient is zero and {lost['subnormal']:.2%} subnormal"
        )
        why = f"only because of {lost['precision'].upper()}{_most(lost['underflow_module'])}"
        yield f"Underflow     step {lost['step']}: {numbers} {why}"
    if lost["stagnation"] is not None:
        share = f"{lost['stagnation']:.2%} of the weights with a gradient did not change"
        yield f"Stagnation    step {lost['step']}: {share}{_most(lost['stagnation_module'])}"


def _left_to_scale(overflows: int, comparisons: int) -> Iterator[str]:
    """What the guard did not count, because the loss scale cures it."""
    if overflows:
        yield f"Loss scale    {overflows} overflows do not count: it fell by itself"
    if comparisons:
        times = f"in {comparisons} comparisons"
        yield f"Loss scale    vanishing gradients {times} do not count: it grew by itself"


def _most(module: str) -> str:
    return f", most of them in {module}" if module else ""


def _cause(agent: str, overflow: dict[str, Any], *, searched: bool) -> str:
    """What made a diagnosed step overflow, and what can be done unless a search has told it."""
    cause, where = overflow["cause"], f"{overflow['operation']} in {overflow['module']}"
    scale = f"{overflow['loss_scale']:g}"
    if cause == "not_reproduced":
        return f"the batch that was tried does not overflow at loss scale {scale}"
    if cause == "fp32":
        return f"{where} is not finite in FP32 either: check data and model, not the precision"
    if overflow["lower_scale_helps"]:
        return f"{where}, in the {cause} pass at loss scale {scale}; a lower scale helps"
    if searched:
        return (
            f"first seen in {overflow['module']}, in the {cause} pass, as {overflow['operation']}"
        )
    module, _, _ = overflow["module"].partition(" (")
    setting = f"GENESIS_AGENTS__{agent.upper().replace('-', '_')}__KEEP_FP32={module}"
    remedy = "use FP32 or BF16" if module.startswith("the ") else f"try {setting}"
    return f"{where}, in the {cause} pass at every loss scale; {remedy}"


def _guard(settings: Settings | None, answer: dict[str, Any]) -> Iterator[str]:
    if not answer["decisions"]:
        yield "The guard     watches; it has made no decision yet."
        return
    last = answer["decisions"][0]
    yield f"The guard     {last['state']} since {moment(last['at'])}, by {last['actor']}"
    yield from _trip(answer)
    if last["state"] == "tripped" and not (last["tripped"] or last["descended"]):
        yield f"Stays in FP32 {last['reason']}"
    yield f"What now      {_what_now(settings, last)}"
    prefix = f"GENESIS_AGENTS__{answer['agent'].upper().replace('-', '_')}__"
    in_fp32 = [part_place(part) for part, name in last["parts"].items() if name == "fp32"]
    if kept := [*last["modules"], *in_fp32]:
        yield f"For good      {prefix}KEEP_FP32={','.join(kept)}, or keep_fp32 of the job"
    elif last["parts"]:
        places = ",".join(map(part_place, last["parts"]))
        yield f"For good      {prefix}KEEP_FP32={places}; no setting gives a part a half type"
    elif half := last["roles"].get("world_model"):
        yield f"For good      {prefix}PRECISION={half}"
    if last["state"] == "tripped":
        undo = f"genesis-fp16 precision clear --guard {answer['agent']} --reason ..."
        yield f"How to undo   {undo}"


def _trip(answer: dict[str, Any]) -> Iterator[str]:
    """The last trip and its numbers."""
    trips = (decision for decision in answer["decisions"] if decision["state"] == "tripped")
    trip = next((decision for decision in trips if decision["tripped"]), None)
    if trip is None:
        return
    yield f"Last trip     {trip['trigger']} at {moment(trip['at'])}: {trip['reason']}"
    seen = answer["evidence"] or {}
    if trip["run_id"]:
        attempt = f", attempt {seen['attempt']}" if seen.get("attempt") else ""
        step = "" if trip["step"] is None else f", step {trip['step']}"
        yield f"Where         run {trip['run_id']}{attempt}{step}"
    if answer["folder_removed"]:
        yield f"Run folder    {answer['folder_removed']}"
    if statistics := seen.get("statistics"):
        scales = (f"{statistic['loss_scale']:g}" for statistic in statistics)
        changes = [scale for scale, _ in groupby(scales)][-_SHOWN_SCALES:]
        yield f"Loss scale    {' -> '.join(changes)}"
    yield from _mismatch([mismatch["report"] for mismatch in seen.get("mismatches", ())])
    if modules := seen.get("offending_modules"):
        yield f"Modules       {', '.join(modules)}"
    if checkpoint := seen.get("checkpoint"):
        with_folder = answer["folder_removed"] and not os.path.lexists(checkpoint["path"])
        why = answer["weights_removed"] or ("removed with it" if with_folder else "")
        note = f"; {why}" if why else ""
        yield f"Checkpoint    step {checkpoint['step']}: {checkpoint['path']}{note}"
    if answer["evidence_trouble"]:
        yield f"No numbers    {answer['evidence_trouble']}"
    elif trip["evidence"]:
        yield f"All numbers   {answer['evidence_file']}"


def _mismatch(reports: list[dict[str, Any]]) -> Iterator[str]:
    """How far trainer and rollout were apart, and would be in other precisions."""
    if not reports:
        return
    last = reports[-1]
    parts = []
    for pair, alike in groupby(reports[-_SHOWN_SCALES:], key=_pair):
        values = " -> ".join(f"{report['k3']:.2g}" for report in alike)
        parts.append(f"{values} nats per token ({pair})")
    yield f"Mismatch      {' -> '.join(parts)}"
    others = f"correlation {last['pearson']:.5g}, chi-squared {last['chi2_token']:.2g} per token"
    yield f"Also          {others}, {last['chi2_sequence']:.2g} per sequence"
    combinations = sorted(last["combinations"], key=lambda combination: float(combination["k3"]))
    shown = [
        f"{combination['policy']}/{combination['rollout']} {combination['k3']:.2g}"
        for combination in combinations
    ]
    if shown:
        yield f"Same tokens   {', '.join(shown)} (policy/rollout)"


def _pair(report: dict[str, Any]) -> str:
    return f"policy {report['policy'].upper()}, rollout {report['rollout'].upper()}"


def _what_now(settings: Settings | None, last: dict[str, Any]) -> str:
    if settings is None:
        return "unknown until the settings are corrected"
    if not settings.guard_enabled:
        return "no effect: GENESIS_GUARD_ENABLED is false"
    if last["state"] == "watching":
        return "half precision is allowed"
    if last["state"] == "probation":
        return "half precision on probation: another trip brings FP32 back for twice as long"
    if last["descended"] and not settings.search_seconds_of(last["agent"]):
        return "FP32 for all: GENESIS_GUARD_LADDER is false, for this agent or all"
    return _demanded(settings, last)


def _demanded(settings: Settings, last: dict[str, Any]) -> str:
    """What a trip demands, and until when."""
    roles = [f"{role} in {name.upper()}" for role, name in last["roles"].items()]
    whole = {"policy", "world_model"} & last["roles"].keys()
    unchanged = "" if whole else " (other roles as before)"
    demanded = f"{' and '.join(roles)}{unchanged}" if roles else "FP32"
    if half := last["roles"].get("world_model"):  # of a rung: of a policy, its copies have it, too
        demanded = f"{half.upper()} in place of the other half type"
    if last["modules"]:
        demanded = f"FP32 in {' and '.join(last['modules'])} (half precision elsewhere)"
    if parts := [f"{name.upper()} in part {part}" for part, name in last["parts"].items()]:
        demanded = f"{' and '.join(parts)} (other parts as before)"
    if settings.guard_reenable == "manual":
        until = "until an operator ends it (GENESIS_GUARD_REENABLE=manual)"
        return f"{demanded} in every run {until}"
    when = moment(last["until"])
    if last["modules"] or last["parts"] or last["roles"]:
        return f"{demanded}; half precision everywhere is tried after {when}, in a running job too"
    return f"{demanded}; the first run after {when} tries half precision again"


def _overrides(answer: dict[str, Any]) -> Iterator[str]:
    for override in answer.get("overrides", ()):
        yield f"Override      {describe_override(override)}"
    for change in answer.get("audit", [])[:3]:
        text = f"{change['action']} for {change['subject']}: {change['reason']}"
        yield f"By hand       {moment(change['at'])} {change['actor']}: {text}"


def describe_override(override: dict[str, Any]) -> str:
    """One line: precision, agent, end, actor, time and reason of *override*."""
    until = f" until {moment(override['expires_at'])}" if override["expires_at"] else ""
    scope = override["agent"] or "all agents"
    since = f", for runs begun since {moment(override['created_at'])}"
    return (
        f"{override['precision']} for {scope}{until}{since if override['next_run'] else ''}, "
        f"by {override['actor']} at {moment(override['created_at'])}: {override['reason']}"
    )


def _print_decisions(decisions: list[dict[str, Any]]) -> None:
    if not decisions:
        return
    typer.echo()
    print_table(
        ["decided", "state", "trigger", "trips", "who", "run", "why"],
        [
            [moment(decision["at"]), *(decision[name] for name in _DECISION_COLUMNS)]
            for decision in decisions[:_SHOWN_DECISIONS]
        ],
    )


def _print_comparison(outcomes: list[dict[str, Any]]) -> None:
    """Half precision and FP32 side by side, by the primary held-out metric."""
    if not outcomes:
        return
    metric, better = outcomes[0]["metric"], outcomes[0]["higher_is_better"]
    rows = []
    for precision in ("half", "fp32", "mixed"):
        group = [o for o in outcomes if o["precision"] == precision and o["metric"] == metric]
        values = [outcome["value"] for outcome in group if outcome["value"] is not None]
        if group:
            numbers = (fmean(values), min(values), max(values)) if values else (math.nan,) * 3
            newest = ", ".join(map(_newest, group[:_SHOWN_RUNS]))
            rows.append([precision, len(group), *map(_format, numbers), newest])
    typer.echo()
    direction = {True: ", higher is better", False: ", lower is better", None: ""}[better]
    print_table(
        ["trained in", "runs", f"mean {metric}{direction}", "least", "most", "newest"], rows
    )
    if any(outcome["decided_value"] is not None for outcome in outcomes):
        print_line(
            f"mean, least and most: {metric} of the trained network alone, which FP32 repetitions "
            "have too; newest: of the model published or refused (the network's in brackets)"
        )


def _newest(outcome: dict[str, Any]) -> str:
    """Number of the run and value of the model decided on, as `runs show` prints it."""
    network, decided = _format(outcome["value"]), outcome["decided_value"]
    if decided is None:
        return f"#{outcome['number']} {network}"
    how = "published" if outcome["published"] else "refused"
    return f"#{outcome['number']} {how} {_format(decided)} ({network})"


def _format(value: float | None) -> str:
    return "not finite" if value is None or math.isnan(value) else f"{value:.4g}"

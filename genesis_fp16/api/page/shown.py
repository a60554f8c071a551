"""What the page makes of views: the state and the precision that an agent shows, and evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from urllib.parse import quote

from pydantic import JsonValue

from genesis_fp16.api.views import AgentView, ChangeView, RunEvaluation, RunView
from genesis_fp16.domain.precision import DECIDED_BY
from genesis_fp16.domain.run import ACTIVE, RunState

ROWS_SHOWN = 12  # of a table of evidence, the last ones
_SHORT = {
    "default": "by default",
    "agent": "setting of the agent",
    "operator": "operator",
    "flag": "ENABLE_FP16_TRAINING is false",
    "guard": "guard",
    "floor_policy": "overflows at the lowest loss scale",
    "canary": "not in the canary share",
    "baseline": "an FP32 repetition",
    "device_unknown": "device not known yet",
    "no_accelerator": "no accelerator",
    "unsupported": "the device lacks the half type",
    "measured": "measured as best",
}
_NOT_SHOWN = ("kind", "time")  # of an event in a table
_OF_DECISION = {  # which the table of decisions shows
    *("agent", "at", "state", "trigger", "level", "until", "run_id", "step", "actor", "reason"),
    *("evidence", "roles", "modules", "parts"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownPrecision:
    """The precision of the agent's run under way, or else of its next one.

    Attributes:
        why: Who decided it, in a sentence; *short* says it in a few words.
        changing_to: Precision that its worker has not yet acknowledged; empty if there is none.
    """

    effective: str
    why: str
    short: str
    changing_to: str = ""


def shown_precision(agent: AgentView) -> ShownPrecision:
    """The precision in force for *agent*: acknowledged if a run is under way."""
    precision, run = agent.precision, agent.last_run
    known = precision.acknowledged
    effective, reason, changing_to = str(precision.effective), str(precision.reason), ""
    if run is not None and known is not None and is_active(run) and known.run == run.id:
        effective, reason = known.effective, known.reason
        if precision.effective not in (effective, "auto") and run.trigger != "baseline":
            changing_to = precision.effective
    wanted = [
        override.reason for override in precision.overrides if override.precision == effective
    ]
    detail = f": {wanted[-1]}" if wanted and reason == "operator" else ""
    return ShownPrecision(
        effective=effective,
        why=why(reason) + detail,
        short=_SHORT.get(reason, reason) + detail,
        changing_to=changing_to,
    )


def why(reason: str) -> str:
    """A sentence about the demand that decided; *reason* itself if it is unknown."""
    return dict[str, str](DECIDED_BY).get(reason, reason)


def is_active(run: RunView) -> bool:
    """Whether a worker has the run."""
    return run.state in ACTIVE


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownAgent:
    """An agent as the page shows it.

    Attributes:
        state: One word for what it does now.
    """

    view: AgentView
    state: str
    precision: ShownPrecision


def show_agent(view: AgentView) -> ShownAgent:
    """Find what matters most about an agent."""
    return ShownAgent(view=view, state=_state(view), precision=shown_precision(view))


def _state(view: AgentView) -> str:
    run = view.last_run
    if view.state != "ready":
        return view.state
    if run is not None and is_active(run):
        return str(run.state)
    if view.pauses:
        return "paused"
    return "waiting" if run is not None and run.state is RunState.QUEUED else "ready"


def subject_url(change: ChangeView) -> str:
    """The page about what *change* was of; empty if there is none."""
    if change.subject == "all":
        return ""
    kind = "runs" if change.action in ("cancel", "run move") else "agents"
    return f"/{kind}/{quote(change.subject, safe='')}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Values of the primary metric of the runs in one precision; least and most of them."""

    precision: str
    metric: str
    higher_is_better: bool | None
    runs: int
    mean: float | None
    least: float | None
    most: float | None


def compare(outcomes: Sequence[RunEvaluation]) -> list[Comparison]:
    """*outcomes* by precision, of the newest one's metric; empty if only one precision has any."""
    comparisons = []
    for precision in ("half", "fp32", "mixed"):
        group = [
            outcome
            for outcome in outcomes
            if outcome.precision == precision and outcome.metric == outcomes[0].metric
        ]
        values = [outcome.value for outcome in group if outcome.value is not None]
        if group:
            comparisons.append(
                Comparison(
                    precision=precision,
                    metric=group[0].metric,
                    higher_is_better=group[0].higher_is_better,
                    runs=len(group),
                    mean=fmean(values) if values else None,
                    least=min(values, default=None),
                    most=max(values, default=None),
                )
            )
    return comparisons if len(comparisons) > 1 else []


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A list of records in a bundle of evidence; *left_out* counts those before *rows*."""

    name: str
    columns: Sequence[str]
    rows: Sequence[Mapping[str, JsonValue]]
    left_out: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """A bundle, sorted by how it is best shown."""

    numbers: Mapping[str, JsonValue]
    tables: Sequence[Table]
    groups: Mapping[str, Mapping[str, JsonValue]]


def sort_evidence(bundle: JsonValue) -> Evidence:
    """Split a bundle into single values, lists of records, and groups of values."""
    content = bundle if isinstance(bundle, dict) else {}
    numbers: dict[str, JsonValue] = {}
    tables: list[Table] = []
    groups: dict[str, Mapping[str, JsonValue]] = {}
    for name, value in content.items():
        if name in _OF_DECISION or value in (None, [], {}, ""):
            continue
        if isinstance(value, list) and all(isinstance(row, dict) for row in value):
            tables.append(_table(name, [row for row in value if isinstance(row, dict)]))
        elif isinstance(value, dict):
            groups[name] = value
        else:
            numbers[name] = value
    return Evidence(numbers=numbers, tables=tables, groups=groups)


def _table(name: str, records: list[dict[str, JsonValue]]) -> Table:
    rows = records[-ROWS_SHOWN:]
    columns = [
        column
        for column in dict.fromkeys(column for row in rows for column in row)
        if column not in _NOT_SHOWN and any(row.get(column) not in (None, "") for row in rows)
    ]
    return Table(name=name, columns=columns, rows=rows, left_out=len(records) - len(rows))

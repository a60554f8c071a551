"""What the API and the page show: one model for each kind of thing, read from the store.

Times are Unix seconds; durations are in seconds. A number that is not finite is null in JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from genesis_fp16.domain.guard import GuardState, Trigger
from genesis_fp16.domain.model_reading import ModelReading
from genesis_fp16.domain.run import RunState
from infrastructure.events.precision_state import PrecisionReason, PrecisionWish


class View(BaseModel):
    """Part of an answer; made of a dataclass by `model_validate`."""

    model_config = ConfigDict(frozen=True, from_attributes=True)


class Acknowledged(View):
    """The precision that a worker reported last, in the run that it trained.

    Attributes:
        roles: ``role:store/compute/out`` by commas, for a policy job; empty for others.
        modules: Modules that the guard has raised to FP32, by commas.
        parts: ``part:precision`` by commas, of parts of the job that the guard has changed.
    """

    run: str
    requested: str
    effective: str
    reason: str
    roles: str = ""
    modules: str = ""
    parts: str = ""


class Demand(View):
    """A demand for FP32, or the choice of the half type.

    Attributes:
        reason: Who demands it.
        precision: Precision demanded.
        decides: Whether this demand is in force.
        explanation: Who that is, in a sentence.
    """

    reason: PrecisionReason
    precision: PrecisionWish
    decides: bool
    explanation: str


class OverrideView(View):
    """An operator's override; *agent* is null for all agents."""

    agent: str | None
    precision: PrecisionWish
    reason: str
    actor: str
    created_at: float
    expires_at: float | None
    next_run: bool


class PrecisionView(View):
    """The precision of an agent's next run, who decides it, and what a worker acknowledged last.

    Attributes:
        requested: Precision that would run if nothing demanded FP32.
        effective: Precision of a run that begins now; ``auto`` is left to the worker.
        reason: The demand that decides; *explanation* is a sentence about it.
        demands: The deciding one first, then the others for FP32 and the choice of the half type.
        overrides: Overrides in force that concern the agent.
        acknowledged: Null until a worker has reported one.
    """

    agent: str
    requested: PrecisionWish
    effective: PrecisionWish
    reason: PrecisionReason
    explanation: str
    demands: Sequence[Demand]
    overrides: Sequence[OverrideView]
    acknowledged: Acknowledged | None


class PrecisionOfAll(View):
    """What determines the precision of all agents.

    Attributes:
        flag: ``ENABLE_FP16_TRAINING``; false demands FP32 for all.
        default: ``GENESIS_PRECISION``.
        overrides: All overrides in force.
    """

    flag: bool
    flag_source: str
    default: str
    overrides: Sequence[OverrideView]


class GuardDecision(View):
    """A decision of the guard, or of an operator who ended its rollback.

    Attributes:
        level: Trips in a row.
        until: End of the cool-down.
        evidence: File below the home folder; empty if there is none.
    """

    agent: str
    state: GuardState
    at: float
    trigger: Trigger | None
    level: int
    until: float | None
    run_id: str
    step: int | None
    actor: str
    reason: str
    evidence: str
    roles: Mapping[str, str]
    modules: tuple[str, ...] = ()
    parts: Mapping[str, str] = Field(default_factory=dict)


class GuardView(View):
    """The guard's decisions on an agent, newest first, and the evidence of its last trip.

    Attributes:
        state: The state in force.
        evidence: Content of the bundle; null if there is none, or *evidence_trouble* says why.
    """

    agent: str
    enabled: bool
    state: GuardState
    decisions: Sequence[GuardDecision]
    evidence: JsonValue
    evidence_trouble: str


class PartView(View):
    """Steps of one part of a job over a run: see `genesis_fp16.domain.run.PartTotals`."""

    steps: int
    overflows: int
    nonfinite_losses: int
    loss: float | None
    loss_scale: float


class RunView(View):
    """A run.

    Attributes:
        precision: Requested, effective and reason, as its worker acknowledged them.
        parts: Parts of its job by name, in the order of their steps; null if it has one.
    """

    id: str
    agent: str
    number: int
    trigger: str
    baseline_of: str | None
    state: RunState
    seed: int
    due_at: float
    created_at: float
    available_at: float
    started_at: float | None
    finished_at: float | None
    active_seconds: float
    failures: int
    cancel_requested: bool
    published: bool | None
    reason: str | None
    metrics: Mapping[str, float | None] | None
    primary_metric: str | None
    primary_value: float | None
    higher_is_better: bool | None
    steps: int
    half_steps: int
    fp16_steps: int
    overflows: int
    nonfinite_losses: int
    precision: Mapping[str, str] | None
    parts: Mapping[str, PartView] | None
    error: str | None
    folder_removed: str | None


class QueuedRunView(View):
    """A run that waits, see `genesis_fp16.daemon.queue.QueuedRun`."""

    run: RunView
    place: int
    waits_for: Literal["slot", "agent", "backoff", "quota", "pause", "plugin", "cancel", "daemon"]
    why: str
    starts_at: float | None


class PrecisionChange(View):
    """A change of precision that a worker acknowledged."""

    time: float
    step: int
    loss_scale: float
    requested: str
    effective: str
    reason: str
    roles: str = ""
    modules: str = ""
    parts: str = ""


class AttemptView(View):
    """An attempt of a run.

    Attributes:
        ending: How it ended; null while it goes on.
        error: Why it failed; null if it did not, or an earlier release has recorded it.
        waiting: What it waits for: a queue, or storage that does not answer; null if for nothing.
        activity: What its worker does, as ``collecting: 150 of 12,000 candidates``; null before its
            first phase, after its end, and where the events left out tell it.
        data_problems: What its worker says about the data that it trained on, before training.
        events: Number of its events by kind, of those that were read.
        events_not_read_bytes: Bytes of older events that were left out.
        has_log: Whether its log exists.
    """

    number: int
    started_at: float
    finished_at: float | None
    pid: int | None
    exit_code: int | None
    signal: int | None
    ending: str | None
    error: str | None
    waiting: str | None
    activity: str | None
    data_problems: Sequence[str] = ()
    has_log: bool
    events: Mapping[str, int]
    events_trouble: str
    events_not_read_bytes: int
    precision: Sequence[PrecisionChange]
    evaluation: JsonValue


class RunDetail(RunView):
    """A run with its newest attempts, oldest first; *attempts_left_out* counts the others.

    Attributes:
        waits: What it waits for; null unless it is queued.
    """

    attempts: Sequence[AttemptView]
    attempts_left_out: int
    waits: QueuedRunView | None


class PauseView(View):
    """A pause: its agent, or all agents if *agent* is null, start no run.

    Attributes:
        stops_runs: Whether runs under way stop after a checkpoint, to go on when resumed.
    """

    agent: str | None
    reason: str
    actor: str
    created_at: float
    stops_runs: bool


class OutcomesView(View):
    """Outcomes that make an agent due.

    Attributes:
        waiting: Number that no run has taken in yet.
        needed: Number at which it is due.
    """

    waiting: int
    needed: int


class AgentView(View):
    """An installed or configured agent.

    Attributes:
        state: ``ready``, ``pending``, ``quarantined`` or ``disabled``; *why* if it is not ready.
        schedule: The one in force; *next_run_at* is its next due time, null if there is none.
        next_run_local: The same in the schedule's time zone; null if that is UTC.
        outcomes: Outcomes that decide when it is due; null if its schedule is of times.
        guard: State of the guard.
        last_run: The newest run of it, which may be under way or waiting.
        pauses: Pauses that keep it from starting runs: its own, and that of all agents.
    """

    name: str
    state: str
    why: str
    detail: str
    distribution: str
    version: str
    entry_point: str
    schedule: str | None
    catch_up: str | None
    overlap: str | None
    next_run_at: float | None
    next_run_local: str | None
    outcomes: OutcomesView | None
    precision: PrecisionView
    guard: GuardState
    last_run: RunView | None
    pauses: Sequence[PauseView]


class LogTail(View):
    """The end of an attempt's log.

    Attributes:
        skipped_bytes: Bytes before *text* that were left out.
        size_bytes: Size of the whole log.
    """

    run: str
    attempt: int
    text: str
    skipped_bytes: int
    size_bytes: int


class PartPoint(PartView):
    """Statistics of one part of a job, as those of a `CurvePoint`."""

    name: str
    grad_norm: float | None


class CurvePoint(View):
    """Consecutive statistics of a training, merged.

    Attributes:
        step: Steps attempted since the run began, at the end of the point.
        steps, overflows, nonfinite_losses: Steps in the point, and those with that outcome.
        loss: Mean finite loss of these steps.
        seconds: Time that the steps took.
        parts: The same of each part of a job that has several.
    """

    time: float
    step: int
    steps: int
    overflows: int
    nonfinite_losses: int
    loss: float | None
    grad_norm: float | None
    loss_scale: float
    precision: str
    samples: int
    seconds: float
    parts: Sequence[PartPoint]


class RunCurve(View):
    """A run's curve, thinned to a bounded number of points.

    Attributes:
        last_event_id: Where the stream of the run's events goes on: its ``Last-Event-ID``.
        skipped_bytes: Bytes of the oldest events that were left out, because there are too many.
    """

    run: str
    points: Sequence[CurvePoint]
    last_event_id: str
    skipped_bytes: int


class Trouble(View):
    """Why the events of a run cannot be read now; the stream goes on trying."""

    detail: str


class MismatchPoint(View):
    """One comparison of trainer and rollout: the fields of `MismatchReport`, and when."""

    run: str
    time: float
    step: int
    round: int
    report: Mapping[str, JsonValue]


class RunEvaluation(View):
    """The held-out metric of a successful run; *precision* is half, fp32 or mixed."""

    run_id: str
    number: int
    precision: Literal["half", "fp32", "mixed"]
    reason: str
    metric: str
    value: float | None
    published: bool | None
    decided_value: float | None
    higher_is_better: bool | None


class ModelView(View):
    """A kept version of an agent's model; null where its facts cannot be read.

    Attributes:
        replaced: Version that was in use before it.
        data_sha256: Hash of the transitions that it was trained on.
        problem: Why it cannot be put back; empty if it can.
    """

    id: str
    in_use: bool
    problem: str
    run_id: str | None
    published_at: float | None
    replaced: str | None
    reason: str | None
    metrics: Mapping[str, float]
    transitions: int | None
    data_sha256: str | None


class ModelGuardView(View):
    """What the guard for models knows of an agent.

    Attributes:
        reading: How the predictions of the version in use compare with what came true; null until
            there are enough outcomes.
        taken_back: Versions that the guard took out of use, the newest last.
        explanation: Why it took the last one; empty if it took none.
        kept: Version that an operator keeps in use, which the guard leaves alone; null for none.
    """

    reading: ModelReading | None
    taken_back: Sequence[str]
    explanation: str
    kept: str | None


class ModelsView(View):
    """Kept versions of an agent's model, the last published first; *in_use* may be none of them."""

    agent: str
    in_use: str | None
    versions: Sequence[ModelView]
    guard: ModelGuardView


class SettingView(View):
    """A setting in force, its source, and whether a change of it applies at once."""

    name: str
    value: str
    source: str
    hot: bool


class SettingsView(View):
    """The settings.

    Attributes:
        settings: Those in force; credentials are hidden.
        file: The settings file that the daemon follows.
        refused: Why the daemon keeps its previous settings; empty if it does not.
        problems: What is wrong with the settings as they are written now.
        waiting: Variables whose change waits for a restart, as ``in force -> written``.
    """

    settings: Sequence[SettingView]
    file: str
    refused: str
    problems: Sequence[str]
    waiting: Mapping[str, str]


class CheckView(View):
    """Result of a check of ``genesis-fp16 doctor``."""

    check: str
    verdict: Literal["ok", "warn", "fail"]
    found: str
    remedy: str


class DoctorView(View):
    """All checks; *verdict* is the worst."""

    verdict: Literal["ok", "warn", "fail"]
    checked_at: float
    checks: Sequence[CheckView]


class LabReportView(View):
    """A report of the precision lab; the page itself is at ``/api/reports/NAME``."""

    name: str
    written_at: float
    bytes: int


class HealthView(View):
    """The daemon that serves the home.

    Attributes:
        ready: Whether it accepts work; *trouble* says why it does not.
        device: The device it trains on; null until it is known.
        queued, active: Number of runs that wait, and that are under way.
    """

    version: str
    ready: bool
    trouble: str
    pid: int | None
    host: str
    since: float
    settings_file: str
    settings_refused: str
    device: str | None
    queued: int
    active: int


class CallerView(View):
    """Who asks; *csrf* is null without a session."""

    actor: str
    csrf: str | None


class ChangeView(View):
    """An entry of the audit trail."""

    at: float
    actor: str
    action: str
    subject: str
    reason: str
    details: Mapping[str, JsonValue]

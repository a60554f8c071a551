"""Reads views for one home. Safe to use from several threads."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

import genesis_fp16
from genesis_fp16.api import views
from genesis_fp16.api.readings import run_files
from genesis_fp16.api.readings.followed import Followed
from genesis_fp16.api.readings.kept import DueTimes, KeptScan
from genesis_fp16.api.readings.precision_reading import PrecisionReading
from genesis_fp16.daemon import checks, models, operator
from genesis_fp16.daemon.attempt_summary import summarize_attempt
from genesis_fp16.daemon.known_agents import known_agents
from genesis_fp16.daemon.queue import read_queue
from genesis_fp16.domain.guard import Decision, GuardState
from genesis_fp16.domain.pause import PausesInForce, pauses_of
from genesis_fp16.domain.run import ACTIVE, Run, RunState
from genesis_fp16.domain.schedule import local_due
from genesis_fp16.guard.evidence import EvidenceError, read_evidence
from genesis_fp16.guard.models import read_watched
from genesis_fp16.plugins.model_versions import KeptVersion
from genesis_fp16.plugins.probe import Plugin
from genesis_fp16.runs.outcome_counts import OutcomeCounts
from genesis_fp16.runs.run_folder import describe_removal
from genesis_fp16.settings import (
    VARIABLES,
    AgentSettings,
    Settings,
    SettingsError,
    hot_fields,
    load_settings,
    variable_name,
)
from genesis_fp16.settings.settings import display
from genesis_fp16.store import Store
from genesis_fp16.store.daemon_status import STARTING, DaemonStatus
from infrastructure.agent_contract import Schedule

ATTEMPTS_SHOWN = 20
EVENTS_READ_BYTES = 4 << 20  # of one attempt; of a longer file its newest quarter of that
RUNS_OF_MISMATCHES = 5
AGENTS_SECONDS = 2.0  # for which a look at the installed agents holds
DOCTOR_SECONDS = 10.0  # for which the checks hold: they start processes
_FAILED = (RunState.FAILED, RunState.CRASHED, RunState.TIMED_OUT)
_HOT_OF_AGENTS = hot_fields(AgentSettings)


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentInBrief:
    """What chooses among agents; *last_run* is the state of its newest run."""

    name: str
    state: str
    guard: GuardState
    last_run: RunState | None

    @property
    def needs_attention(self) -> bool:
        """Whether it is quarantined, rolled back by the guard, or its last run failed."""
        guarded = self.guard is not GuardState.WATCHING
        return self.state == "quarantined" or guarded or self.last_run in _FAILED

    @property
    def runs(self) -> bool:
        """Whether a worker has a run of it."""
        return self.last_run in ACTIVE


class Readings:
    """Reads views.

    Args:
        settings: Settings with which the daemon that serves the home has started.
        store: Its open store.

    Attributes:
        settings: The same.
        store: The same.
        home: The absolute home.
    """

    def __init__(self, settings: Settings, store: Store) -> None:
        self.settings, self.store = settings, store
        self.home = settings.home.absolute()
        self._followed = Followed(self.home, settings)
        self._plugins: list[Plugin] = []
        self._plugins_until = 0.0
        self._scans, self._due = KeptScan(), DueTimes()
        self._counts = OutcomeCounts(self.home)
        self._doctor: views.DoctorView | None = None
        self._looking, self._checking = threading.Lock(), threading.Lock()

    @property
    def daemon(self) -> DaemonStatus:
        """What the daemon has published last."""
        return self._followed.read()[0]

    @property
    def in_force(self) -> Settings:
        """Settings that the daemon follows now."""
        return self._followed.read()[1]

    # Agents

    def agents(self, names: Collection[str] | None = None) -> list[views.AgentView]:
        """All agents, or those of *names*, in alphabetical order."""
        plugins = self._known_agents()
        if names is not None:
            plugins = [plugin for plugin in plugins if plugin.name in names]
        runs = self.store.newest_runs(names)
        acknowledged = self.store.newest_runs(names, acknowledged=True)
        state = self._precision_state(self.store.guard.latest(), acknowledged)
        pauses = self.store.pauses.in_force()
        return [self._agent(plugin, runs.get(plugin.name), state, pauses) for plugin in plugins]

    def agents_in_brief(self) -> list[AgentInBrief]:
        """What chooses among all agents, in alphabetical order; cheap for a thousand."""
        states, decisions = self.store.newest_states(), self.store.guard.latest()
        return [
            AgentInBrief(
                name=plugin.name,
                state=plugin.state,
                guard=decisions[plugin.name].state
                if plugin.name in decisions
                else GuardState.WATCHING,
                last_run=states.get(plugin.name),
            )
            for plugin in self._known_agents()
        ]

    def agent(self, name: str) -> views.AgentView:
        """One agent.

        Raises:
            UnknownNameError: No agent of that name is installed.
        """
        for plugin in self._known_agents():
            if plugin.name == name:
                newest = next(iter(self.store.runs(name, limit=1)), None)
                state, pauses = self._precision_of(name), self.store.pauses.in_force()
                return self._agent(plugin, newest, state, pauses)
        operator.check_agent(name, self.home)
        raise operator.UnknownNameError(f"agent {name!r} was installed a moment ago: try again")

    def check_agent(self, name: str) -> None:
        """Check that an agent of that name is installed or has left something in the store.

        Raises:
            UnknownNameError: The message suggests a name.
        """
        if all(plugin.name != name for plugin in self._known_agents()):
            operator.check_agent(name, self.home, self.store)

    def _known_agents(self) -> list[Plugin]:
        with self._looking:  # a thousand agents take a second to look through
            if time.monotonic() >= self._plugins_until:
                self._plugins = known_agents(self.settings, scan=self._scans.look)
                self._plugins_until = time.monotonic() + AGENTS_SECONDS
            return self._plugins

    def _agent(
        self, plugin: Plugin, newest: Run | None, state: PrecisionReading, pauses: PausesInForce
    ) -> views.AgentView:
        schedule = None
        if plugin.schedule is not None:
            schedule = state.settings.schedule_for(plugin.name, plugin.schedule)
        due = self._due.next(schedule) if schedule and plugin.state == "ready" else None
        return views.AgentView(
            name=plugin.name,
            state=plugin.state,
            why=plugin.reason,
            detail=plugin.detail,
            distribution=plugin.distribution,
            version=plugin.version,
            entry_point=plugin.entry_point,
            schedule=None if schedule is None else str(schedule),
            catch_up=None if schedule is None else schedule.catch_up,
            overlap=None if schedule is None else schedule.overlap,
            next_run_at=due,
            next_run_local=local_due(schedule, due) if schedule else None,
            outcomes=self._outcomes(plugin.name, schedule),
            precision=state.view(plugin.name),
            guard=state.decision(plugin.name).state,
            last_run=None if newest is None else views.RunView.model_validate(newest),
            pauses=[
                views.PauseView.model_validate(pause) for pause in pauses_of(pauses, plugin.name)
            ],
        )

    def _outcomes(self, agent: str, schedule: Schedule | None) -> views.OutcomesView | None:
        if schedule is None or schedule.outcomes is None:
            return None
        return views.OutcomesView(waiting=self._counts.of(agent), needed=schedule.outcomes)

    def pauses(self) -> list[views.PauseView]:
        """All pauses in force."""
        pauses = self.store.pauses.in_force().values()
        return [views.PauseView.model_validate(pause) for pause in pauses]

    # Precision, guard

    def precision(self, agent: str) -> views.PrecisionView:
        """What decides the precision of *agent*."""
        self.check_agent(agent)
        return self._precision_of(agent).view(agent)

    def precision_of_all(self) -> views.PrecisionOfAll:
        """What decides the precision of all agents."""
        settings, daemon = self.in_force, self.daemon
        name = variable_name("enable_fp16_training")
        return views.PrecisionOfAll(
            flag=settings.enable_fp16_training,
            flag_source=daemon.sources.get(name, "default"),
            default=settings.precision,
            overrides=[
                views.OverrideView.model_validate(override)
                for override in self.store.overrides.in_force()
            ],
        )

    def guard(self, agent: str) -> views.GuardView:
        """The guard's decisions on *agent*, and the evidence of its last trip."""
        self.check_agent(agent)
        decisions = self.store.guard.history(agent, limit=50)
        trip = next(
            (decision for decision in decisions if decision.state is GuardState.TRIPPED), None
        )
        evidence, trouble = None, ""
        try:
            bundle = read_evidence(self.home, trip) if trip is not None else None
            evidence = bundle.model_dump(mode="json", exclude_unset=True) if bundle else None
        except EvidenceError as error:
            trouble = str(error)
        return views.GuardView(
            agent=agent,
            enabled=self.in_force.guard_enabled,
            state=decisions[0].state if decisions else GuardState.WATCHING,
            decisions=[views.GuardDecision.model_validate(decision) for decision in decisions],
            evidence=evidence,
            evidence_trouble=trouble,
        )

    def outcomes(self, agent: str) -> list[views.RunEvaluation]:
        """Held-out metrics of the newest successful runs, newest first."""
        self.check_agent(agent)
        outcomes = [
            views.RunEvaluation.model_validate(result)
            for result in self.store.compared.results(agent)
        ]
        return [
            outcome.model_copy(update={"value": None}) if _is_not_finite(outcome.value) else outcome
            for outcome in outcomes
        ]

    def _precision_of(self, agent: str) -> PrecisionReading:
        runs = (run for run in self.store.runs(agent, limit=50) if run.precision)
        acknowledged = {run.agent: run for run in [next(runs, None)] if run is not None}
        history = self.store.guard.history(agent, limit=1)
        return self._precision_state({each.agent: each for each in history}, acknowledged)

    def _precision_state(
        self, decisions: Mapping[str, Decision], acknowledged: Mapping[str, Run]
    ) -> PrecisionReading:
        overrides = self.store.overrides.in_force()
        return PrecisionReading(self.daemon, self.in_force, overrides, decisions, acknowledged)

    # Runs

    def runs(
        self,
        agent: str | None = None,
        *,
        states: Sequence[RunState] = (),
        before: str | None = None,
        limit: int = 50,
    ) -> list[views.RunView]:
        """The newest runs, newest first; with *before*, those that follow that run in the list."""
        if agent is not None:
            self.check_agent(agent)
        last = None if before is None else operator.find_run(self.store, before)
        runs = self.store.runs(agent, limit, states=states, before=last)
        return [views.RunView.model_validate(run) for run in runs]

    def queue(self) -> list[views.QueuedRunView]:
        """The runs that wait, in the order in which they start."""
        waiting = read_queue(
            self.store, self.in_force, self._known_agents(), serving=not self.daemon.trouble
        )
        return [views.QueuedRunView.model_validate(one) for one in waiting]

    def run(self, run_id: str) -> views.RunDetail:
        """A run with its attempts.

        Raises:
            UnknownNameError: No run has this id.
        """
        run = operator.find_run(self.store, run_id)
        known = self.store.attempts(run_id)
        shown = [
            summarize_attempt(self.home, attempt, EVENTS_READ_BYTES)
            for attempt in known[-ATTEMPTS_SHOWN:]
        ]
        fields = views.RunView.model_validate(run).model_dump()
        waits = self.queue() if run.state is RunState.QUEUED else []
        folder = self.home / "runs" / run_id
        fields["folder_removed"] = describe_removal(folder, run.folder_removed) or None
        return views.RunDetail(
            **fields,
            attempts=[
                views.AttemptView.model_validate({**attempt, "has_log": attempt["log"] is not None})
                for attempt in shown
            ],
            attempts_left_out=len(known) - len(shown),
            waits=next((one for one in waits if one.run.id == run_id), None),
        )

    def spec(self, run_id: str) -> dict[str, JsonValue]:
        """The specification of the run's newest attempt; empty if it cannot be read any more."""
        return run_files.read_spec(self.home, self.store.attempts(run_id))

    def curve(self, run_id: str, points: int) -> views.RunCurve:
        """The run's curve in at most *points* points."""
        operator.find_run(self.store, run_id)
        return run_files.read_curve(self.home, run_id, self.store.attempts(run_id), points)

    def log_tail(self, run_id: str, number: int, most_bytes: int) -> views.LogTail:
        """The end of the log of an attempt.

        Raises:
            UnknownNameError: No run has this id, or it has no such attempt.
            NoLogError: The attempt has no log that can be read.
        """
        operator.find_run(self.store, run_id)
        for attempt in self.store.attempts(run_id):
            if attempt.number == number:
                return run_files.read_log_tail(self.home, attempt, most_bytes)
        raise operator.UnknownNameError(f"run {run_id} has no attempt {number}")

    def mismatches(self, agent: str) -> list[views.MismatchPoint]:
        """Comparisons of trainer and rollout in the agent's newest runs, oldest first."""
        self.check_agent(agent)
        points: list[views.MismatchPoint] = []
        for run in reversed(self.store.runs(agent, limit=RUNS_OF_MISMATCHES)):
            attempts = self.store.attempts(run.id)
            points += run_files.read_mismatches(self.home, attempts, EVENTS_READ_BYTES)
        return points

    def models(self, agent: str) -> views.ModelsView:
        """Kept versions of the agent's model; sizes of their files are checked, not hashes."""
        self.check_agent(agent)
        agent_models = models.list_models(self.settings, agent, verify=False)
        return views.ModelsView(
            agent=agent,
            in_use=agent_models.in_use,
            versions=[_model(version, agent_models.in_use) for version in agent_models.versions],
            guard=self.model_guard(agent),
        )

    def model_guard(self, agent: str) -> views.ModelGuardView:
        """What the guard for models knows of the agent."""
        watched = read_watched(self.home, agent)
        return views.ModelGuardView(
            reading=watched.reading,
            taken_back=watched.taken_back,
            explanation=watched.explanation,
            kept=self.store.overrides.kept_models().get(agent),
        )

    # The service

    def settings_view(self) -> views.SettingsView:
        """The settings in force, and what is wrong with those that are written now."""
        in_force, daemon = self.in_force, self.daemon
        problems: list[str] = []
        written = in_force
        try:
            written = load_settings()
        except SettingsError as error:
            problems = error.problems
        hot = {variable_name(name) for name in hot_fields(Settings)}
        rows = []
        for name, text, source in written.describe():
            field = VARIABLES.get(name)  # None for a setting of one agent, shown as written
            rows.append(
                views.SettingView(
                    name=name,
                    value=text if field is None else display(name, getattr(in_force, field)),
                    source=daemon.sources.get(name, source) if name in hot else source,
                    hot=name in hot or name.rpartition("__")[2].lower() in _HOT_OF_AGENTS,
                )
            )
        return views.SettingsView(
            settings=rows,
            file=daemon.env_file,
            refused=daemon.refused,
            problems=problems,
            waiting=in_force.differences(written),
        )

    def doctor(self) -> views.DoctorView:
        """The checks of ``genesis-fp16 doctor``, made now or a few seconds ago."""
        with self._checking:
            last = self._doctor
            if last is not None and 0 <= time.time() - last.checked_at < DOCTOR_SECONDS:
                return last
            results = checks.run_checks()
            worst = next(
                (
                    verdict
                    for verdict in ("fail", "warn")
                    if any(result.verdict == verdict for result in results)
                ),
                "ok",
            )
            self._doctor = views.DoctorView.model_validate(
                {
                    "verdict": worst,
                    "checked_at": time.time(),
                    "checks": [views.CheckView.model_validate(result) for result in results],
                }
            )
            return self._doctor

    def health(self) -> views.HealthView:
        """The daemon that serves the home."""
        daemon = self.daemon
        unfinished = self.store.unfinished()
        return views.HealthView(
            version=genesis_fp16.__version__,
            ready=not daemon.trouble,
            trouble="starting" if daemon.trouble == STARTING else daemon.trouble,
            pid=daemon.pid,
            host=daemon.host,
            since=daemon.since,
            settings_file=daemon.env_file,
            settings_refused=daemon.refused,
            device=None if daemon.device is None else daemon.device.name,
            queued=sum(run.state is RunState.QUEUED for run in unfinished),
            active=sum(run.active for run in unfinished),
        )

    def audit(self, limit: int = 50) -> list[views.ChangeView]:
        """The newest changes by hand, newest first."""
        changes = self.store.overrides.audit(limit)
        return [views.ChangeView.model_validate(change) for change in changes]


def _model(version: KeptVersion, in_use: str | None) -> views.ModelView:
    facts = version.facts
    data = None if facts is None else facts.data
    return views.ModelView(
        id=version.id,
        in_use=version.id == in_use,
        problem=version.problem,
        run_id=None if facts is None else facts.run_id,
        published_at=None if facts is None else facts.published_at,
        replaced=None if facts is None else facts.replaced,
        reason=None if facts is None else facts.reason,
        metrics={} if facts is None else facts.metrics,
        transitions=None if data is None else data.transitions,
        data_sha256=None if data is None else data.sha256,
    )


def _is_not_finite(value: float | None) -> bool:
    return value is not None and not math.isfinite(value)

"""The guard for models in the daemon: takes a version back whose predictions no longer hold."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from genesis_fp16.domain.guard import GuardSettings
from genesis_fp16.domain.model_reading import ModelReading
from genesis_fp16.domain.predictor import JudgedOutcomes
from genesis_fp16.guard.models.watch import (
    ModelWatch,
    WatchedAgent,
    path_of,
    read_watched,
)
from infrastructure.files import write_model

SAVE_SECONDS = 2.0  # between two writes of an agent's file
_MOST_TAKEN_BACK = 50

log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True, slots=True)
class TakenBack:
    """A version that the guard takes out of use.

    Attributes:
        agent: Name of the agent.
        version: The version.
        explanation: Why, in one sentence with the numbers.
        reading: The numbers.
        never_to: Versions that must not come back, since the guard took them out of use, too.
    """

    agent: str
    version: str
    explanation: str
    reading: ModelReading
    never_to: tuple[str, ...]


@dataclass(slots=True)
class _Agent:
    state: WatchedAgent
    save_at: float = 0.0
    changed: bool = False
    failed: TakenBack | None = None


class ModelGuard:
    """Watches what the predictor reports of each agent's model.

    What it has seen is kept in a file for each agent, so that a restart of the daemon loses two
    seconds at most.

    Args:
        home: GENESIS_HOME.
        settings: Settings in force.
        take_back: Puts the version before in use, or none, and returns whether that is done; it is
            called again in the next round if not.
        on_reading: Called with an agent and how its model stands, at each full window.
        kept: Returns the version of each agent that an operator keeps in use.
        clock: Monotonic seconds.

    Attributes:
        settings: Settings in force; assign it after a reload.
    """

    def __init__(
        self,
        home: Path,
        settings: GuardSettings,
        take_back: Callable[[TakenBack], bool],
        on_reading: Callable[[str, ModelReading], None],
        kept: Callable[[], Mapping[str, str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self._home, self._take_back, self._on_reading = home, take_back, on_reading
        self._kept, self._clock = kept, clock
        self._agents: dict[str, _Agent] = {}

    def add(self, agent: str, judged: JudgedOutcomes) -> None:
        """Add what a predictor has compared."""
        known = self._agent(agent)
        state, version = known.state, judged.version
        if state.watch is None or state.watch.version != version:
            state.watch = ModelWatch(
                version=version,
                held_out_loss=judged.held_out_loss,
                base_rate_loss=judged.base_rate_loss,
            )
            state.reading, known.failed = None, None
        known.changed = True
        if not state.watch.add(judged, self.settings):
            return
        state.reading = state.watch.reading(self.settings)
        if state.reading is None:
            return
        self._on_reading(agent, state.reading)
        if state.watch.has_failed(self.settings) and known.failed is None:
            known.failed = TakenBack(
                agent=agent,
                version=version,
                explanation=_explain(state.reading, self.settings),
                reading=state.reading,
                never_to=tuple(state.taken_back),
            )

    def tick(self) -> None:
        """Act on what has failed, and write what has changed; called in every round."""
        failed = [known for known in self._agents.values() if known.failed is not None]
        if failed and self.settings.model_guard_enabled:
            kept = self._kept()
            for known in failed:
                if known.failed is not None:
                    self._act(known, known.failed, kept.get(known.failed.agent))
        now = self._clock()
        for agent, known in self._agents.items():
            if known.changed and now >= known.save_at:
                self._save(agent, known)

    def close(self) -> None:
        """Write what has changed."""
        for agent, known in self._agents.items():
            if known.changed:
                self._save(agent, known)

    def _act(self, known: _Agent, failed: TakenBack, kept: str | None) -> None:
        if kept == failed.version:
            known.failed = None  # asked again after the next window
            return
        if not self._take_back(failed):
            return
        state = known.state
        state.taken_back = [*state.taken_back, failed.version][-_MOST_TAKEN_BACK:]
        state.explanation = failed.explanation
        state.watch, state.reading, known.failed = None, None, None
        known.changed, known.save_at = True, 0.0

    def _agent(self, name: str) -> _Agent:
        known = self._agents.get(name)
        if known is None:
            known = self._agents[name] = _Agent(read_watched(self._home, name))
            watch = known.state.watch
            if watch is not None and known.state.reading is not None:
                self._on_reading(name, known.state.reading)
        return known

    def _save(self, agent: str, known: _Agent) -> None:
        known.save_at = self._clock() + SAVE_SECONDS
        path = path_of(self._home, agent)
        try:
            path.parent.mkdir(exist_ok=True)
            write_model(path, known.state)
        except OSError as error:
            consequence = "a restart loses what the outcomes have shown since the last write"
            log.warning(
                "model_guard_not_saved", agent=agent, error=str(error), consequence=consequence
            )
        else:
            known.changed = False


def _explain(reading: ModelReading, settings: GuardSettings) -> str:
    drift, expected = reading.input_drift or 0.0, reading.expected_loss
    is_more = expected is not None and expected > reading.held_out_loss
    answered = f" and {expected:.4f} that it expected of its choices" if is_more else ""
    shifted = f"; an input has drifted by {drift:.1f} standard deviations"
    return (
        f"the predictions of version {reading.version} no longer hold: log loss "
        f"{reading.log_loss:.4f} on the last outcomes against {reading.held_out_loss:.4f} held out "
        f"(there the base rate has {reading.base_rate_loss:.4f}){answered}; "
        f"{reading.skill_lost:.0%} of its skill is lost, seen in {reading.outcomes:,} outcomes"
        f"{shifted if drift >= settings.model_guard_input_drift else ''}"
    )

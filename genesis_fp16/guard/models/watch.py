"""What one version of a model has shown since it answers: windows, evidence, and its reading."""

from __future__ import annotations

import math
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from genesis_fp16.domain.guard import HISTORY_LIMIT, GuardSettings
from genesis_fp16.domain.model_reading import ModelReading
from genesis_fp16.domain.predictor import BETS, CALIBRATION_BINS, JudgedOutcomes, PolicySums
from infrastructure.files import JsonFileError, read_model

FOLDER = "model-guard"  # in the home; a file for each agent
ENOUGH = 100.0
"""Effective sample size from which a gain is shown, and outcomes for a share or a drift."""
_RECENT = 200  # outcomes that the reading is about, at least if there are so many
_MOST_BYTES = 1 << 20
_Z_95 = 1.959964
_EVIDENCE_WITH_DRIFT = 0.5


class Window(BaseModel):
    """Sums over outcomes in a row; see `JudgedOutcomes`."""

    count: int = 0
    loss_sum: float = 0.0
    expected_loss_sum: float = 0.0
    binned: list[float] = [0.0] * CALIBRATION_BINS
    expected: list[float] = [0.0] * CALIBRATION_BINS
    happened: list[float] = [0.0] * CALIBRATION_BINS
    covered: int = 0
    intervals: int = 0
    policies: PolicySums = PolicySums()

    def add(self, other: Window | JudgedOutcomes) -> None:
        """Add further outcomes."""
        self.count += other.count
        self.loss_sum += other.loss_sum
        self.expected_loss_sum += other.expected_loss_sum
        self.covered += other.covered
        self.intervals += other.intervals
        for name in ("binned", "expected", "happened"):
            sums = zip(getattr(self, name), getattr(other, name), strict=True)
            setattr(self, name, [first + second for first, second in sums])
        policies = self.policies.model_copy()
        policies.merge(other.policies)
        self.policies = policies


class ModelWatch(BaseModel):
    """One version under watch.

    The evidence is an e-detector of Shiryaev-Roberts' kind (Shin, Ramdas and Rinaldo 2024,
    "E-detectors: a nonparametric framework for sequential change detection"): after each window
    ``R <- (R + 1) E`` with the window's factor ``E``. However long a model stays as good as its
    held-out value, the mean number of windows before ``R`` passes a threshold is at least that
    threshold.

    Attributes:
        version: The version.
        held_out_loss, base_rate_loss: See `JudgedOutcomes`.
        outcomes: Number of outcomes compared.
        log_evidence: Logarithm of ``R`` for each of `BETS`.
        cusum, rising: Sum of the logarithms of ``E`` for the middle bet since it was last below 0,
            and the number of windows since then: about where a change began.
        filling, filling_evidence: The window that is not full.
        windows: The last full windows.
        policies: Sums over all outcomes.
        input_drift: The last one reported.
    """

    version: str
    held_out_loss: float
    base_rate_loss: float
    outcomes: int = 0
    log_evidence: list[float] = [-1e300] * len(BETS)
    cusum: float = 0.0
    rising: int = 0
    filling: Window = Window()
    filling_evidence: list[float] = [0.0] * len(BETS)
    windows: list[Window] = []
    policies: PolicySums = PolicySums()
    input_drift: float | None = None

    def add(self, judged: JudgedOutcomes, settings: GuardSettings) -> bool:
        """Add outcomes; return whether they completed a window."""
        self.outcomes += judged.count
        self.input_drift = judged.input_drift
        filling = self.filling.model_copy()
        filling.add(judged)
        self.filling = filling
        policies = self.policies.model_copy()
        policies.merge(judged.policies)
        self.policies = policies
        pairs = zip(self.filling_evidence, judged.evidence, strict=True)
        self.filling_evidence = [first + second for first, second in pairs]
        if filling.count < settings.model_guard_window:
            return False
        pairs = zip(self.log_evidence, self.filling_evidence, strict=True)
        self.log_evidence = [_log_sum(before, 0.0) + factor for before, factor in pairs]
        self.cusum = max(0.0, self.cusum + self.filling_evidence[len(BETS) // 2])
        self.rising = self.rising + 1 if self.cusum > 0.0 else 0
        self.windows = [*self.windows, filling][-HISTORY_LIMIT:]
        self.filling, self.filling_evidence = Window(), [0.0] * len(BETS)
        return True

    def has_failed(self, settings: GuardSettings) -> bool:
        """Whether the evidence and the loss of skill both call for the version before.

        Where an input has drifted, a rise of the loss is likelier to stay: half the evidence
        suffices, which is the square root of the mean number of windows between false alarms.
        """
        reading = self.reading(settings)
        if reading is None:
            return False
        has_drifted = (reading.input_drift or 0.0) >= settings.model_guard_input_drift
        return (
            reading.evidence >= (_EVIDENCE_WITH_DRIFT if has_drifted else 1.0)
            and reading.skill_lost >= settings.model_guard_skill_loss
        )

    def reading(self, settings: GuardSettings) -> ModelReading | None:
        """How it stands; None before the first window is full."""
        recent = Window()
        for age, window in enumerate(reversed(self.windows)):
            if recent.count >= _RECENT and age >= self.rising:
                break
            recent.add(window)
        if not recent.count:
            return None
        threshold = settings.model_guard_false_alarm_outcomes / settings.model_guard_window
        highest = max(self.log_evidence)
        total = sum(math.exp(each - highest) for each in self.log_evidence)
        log_mean = highest + math.log(total / len(BETS))
        loss, skill = recent.loss_sum / recent.count, self.base_rate_loss - self.held_out_loss
        # An earlier release held all to the held-out loss, and saved no sum.
        expected = max(self.held_out_loss, recent.expected_loss_sum / recent.count)
        gain = _gain(self.policies)
        return ModelReading(
            version=self.version,
            outcomes=self.outcomes,
            log_loss=loss,
            expected_loss=expected,
            held_out_loss=self.held_out_loss,
            base_rate_loss=self.base_rate_loss,
            skill_lost=(loss - expected) / skill if skill > 0 else math.inf,
            evidence=max(0.0, log_mean / math.log(threshold)),
            calibration_error=_calibration_error(recent),
            coverage=recent.covered / recent.intervals if recent.intervals >= ENOUGH else None,
            input_drift=self.input_drift,
            gain=gain and gain[0],
            gain_low=gain and gain[1],
            gain_high=gain and gain[2],
        )


class WatchedAgent(BaseModel):
    """What is kept of an agent, in its file.

    Attributes:
        watch: The version under watch; None before any outcome.
        reading: How it stood at the last full window.
        taken_back: Versions that the guard has taken back, the newest last.
        explanation: Why the last one was; empty if none was.
    """

    model_config = ConfigDict(ser_json_inf_nan="constants")
    watch: ModelWatch | None = None
    reading: ModelReading | None = None
    taken_back: list[str] = []
    explanation: str = ""


def path_of(home: Path, agent: str) -> Path:
    """File of the agent."""
    return home / FOLDER / f"{agent}.json"


def read_watched(home: Path, agent: str) -> WatchedAgent:
    """What is kept of *agent*; nothing if there is no file, or none that can be read."""
    try:
        return read_model(path_of(home, agent), WatchedAgent, limit=_MOST_BYTES)
    except (OSError, JsonFileError):
        return WatchedAgent()


def _log_sum(first: float, second: float) -> float:
    high, low = max(first, second), min(first, second)
    return high + math.log1p(math.exp(low - high))


def _calibration_error(window: Window) -> float | None:
    """Mean gap between predicted and observed successes; None with too few outcomes."""
    total = sum(window.binned)
    if total < ENOUGH:
        return None
    pairs = zip(window.expected, window.happened, strict=True)
    return sum(abs(expected - happened) for expected, happened in pairs) / total


def _gain(policies: PolicySums) -> tuple[float, float, float] | None:
    """Self-normalised estimate of the model's worth minus the own order's, and its interval."""
    sums, wide = policies.sums, 4
    products = [policies.products[row * wide : (row + 1) * wide] for row in range(wide)]
    for place in (1, 3):
        squares = products[place][place]
        if not squares or sums[place] ** 2 / squares < ENOUGH:
            return None
    model, own = sums[0] / sums[1], sums[2] / sums[3]
    gradient = (1 / sums[1], -model / sums[1], -1 / sums[3], own / sums[3])
    variance = sum(
        gradient[i] * products[i][j] * gradient[j] for i in range(wide) for j in range(wide)
    )
    half = _Z_95 * math.sqrt(max(0.0, variance))
    return model - own, model - own - half, model - own + half

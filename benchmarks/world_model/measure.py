"""Measures our model, or the peers, on one data set with one seed: a record for the results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from benchmarks.measuring.not_run import NotRunError
from benchmarks.world_model.agent import fit
from benchmarks.world_model.bootstrap import GroupLosses
from benchmarks.world_model.catalogue import DATA_SETS
from benchmarks.world_model.dynamics import STATE
from benchmarks.world_model.metrics import (
    Numbers,
    auc,
    clustered_error,
    coverage,
    error_over_deviation,
    log_loss,
    scaled_error,
)
from benchmarks.world_model.peers import Lesson, fit_peers
from benchmarks.world_model.probabilistic_ensemble import fit_ensemble
from benchmarks.world_model.recording import Recording
from infrastructure.agent_contract import Transition
from infrastructure.agent_contract.transition import Box, Discrete
from infrastructure.trajectories import Part, split_rows
from infrastructure.trajectories.schema import label_of
from infrastructure.world_model import WorldModel
from infrastructure.world_model.distributions import Calibration
from infrastructure.world_model.fitting.scoring import row_nll
from infrastructure.world_model.prediction import Prediction

Side: TypeAlias = Literal["ours", "peers"]
OURS: Side = "ours"
PEERS: Side = "peers"

HORIZON = 20
"""Steps of an open-loop prediction."""

FAR = 1e9
"""A number so many times as large as the largest of the training data is far outside of it."""

_STRIDE = 5
_MOST_STARTS = 400


def measure(side: Side, name: str, seed: int, quick: bool) -> dict[str, Any]:
    """Measure one *side* on the data set *name*, on one thread."""
    data_set = DATA_SETS[name]
    recording = data_set.record(seed, data_set.quick_rows if quick else 0)
    torch.set_num_threads(1)
    with threadpool_limits(1):
        measured = _ours(recording, seed) if side == OURS else _peers(recording, seed)
    return {
        "side": side,
        "set": name,
        "seed": seed,
        "quick": quick,
        "rows": len(recording.transitions),
        **measured,
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """The recording by part, with the statistics of its training groups.

    Attributes:
        labels: Labels of the scored target; empty for numbers.
        mean, scale: Mean and standard deviation of numbers, ``[D]``, or the frequencies of labels.
    """

    recording: Recording
    parts: Mapping[Part, Sequence[Transition]]
    labels: Sequence[str]
    mean: Numbers
    scale: Numbers

    @classmethod
    def of(cls, recording: Recording) -> Split:
        """Split as the agent does."""
        transitions = recording.transitions
        rows = split_rows(recording.spec.split, [each.group for each in transitions])
        parts = {part: [transitions[row] for row in numbers] for part, numbers in rows.items()}
        target = recording.spec.targets[recording.target]
        labels = target.values if isinstance(target, Discrete) else ()
        split = cls(
            recording=recording, parts=parts, labels=labels, mean=np.empty(0), scale=np.empty(0)
        )
        outcomes = split.outcomes(parts["train"])
        if labels:
            counts = np.bincount(outcomes, minlength=len(labels)) + 1.0 / len(labels)
            return replace(split, mean=counts / counts.sum())
        return replace(split, mean=outcomes.mean(0), scale=outcomes.std(0))

    def outcomes(self, transitions: Sequence[Transition]) -> NDArray[Any]:
        """Positions of labels, ``[N]``, or numbers, ``[N, D]``; of a state its change."""
        name = self.recording.target
        values = [transition.next_observation[name] for transition in transitions]
        if self.labels:
            position = {label: number for number, label in enumerate(self.labels)}
            return np.array([position[label_of(value)] for value in values], dtype=np.int64)
        numbers = np.array(values, dtype=np.float64).reshape(len(values), -1)
        return numbers - states(transitions) if name == STATE else numbers

    def losses(self, predicted: Numbers, transitions: Sequence[Transition]) -> Numbers:
        """Log loss of each row, or its mean squared error ÷ variance over dimensions."""
        outcomes = self.outcomes(transitions)
        if self.labels:
            return log_loss(predicted, outcomes)
        if self.recording.target != STATE:
            return np.asarray((predicted - outcomes)[:, 0] ** 2)
        varies_D = self.scale > 0
        standard_ND = (predicted - outcomes)[:, varies_D] / self.scale[varies_D]
        return np.asarray((standard_ND**2).mean(1))

    def base(self, rows: int) -> Numbers:
        """Prediction that ignores the inputs, for so many *rows*."""
        return np.broadcast_to(self.mean, (rows, len(self.mean)))


def states(transitions: Sequence[Transition]) -> Numbers:
    """States before the actions, ``[N, D]``."""
    return np.array([each.observation[STATE] for each in transitions], dtype=np.float64)


def _peers(recording: Recording, seed: int) -> dict[str, Any]:
    split = Split.of(recording)
    lesson = Lesson(
        spec=recording.spec,
        train=split.parts["train"],
        calibration=split.parts["calibration"],
        labels=split.labels,
        outcomes=split.outcomes,
    )
    peers, missing = fit_peers(lesson, seed), ""
    if recording.target == STATE:
        try:
            peers["mbrl"] = fit_ensemble(lesson, seed)
        except NotRunError as error:
            missing = str(error)
    test = split.parts["test"]
    predicted = {name: peer.predict(test) for name, peer in peers.items()}
    predicted["base rate"] = split.base(len(test))
    measured = _compared(split, predicted, test)
    if recording.target == STATE:
        for name, peer in peers.items():
            step = _stepping(peer.predict)
            measured["twenty_steps"][name] = _open_loop_error(split, step)
    seconds = {name: peer.seconds for name, peer in peers.items()}
    return {**measured, "seconds": seconds, "not_run": missing}


def _compared(
    split: Split, predicted: Mapping[str, Numbers], test: Sequence[Transition]
) -> dict[str, Any]:
    """Losses by group, and errors of dynamics."""
    rows = {name: split.losses(values, test) for name, values in predicted.items()}
    losses = GroupLosses.of_rows([each.group for each in test], rows)
    measured: dict[str, Any] = {
        "groups": [group.partition("/")[2] for group in losses.groups],
        "group_rows": losses.rows.tolist(),
        "losses": {name: _rounded(sums) for name, sums in losses.sums.items()},
        "one_step": {},
        "twenty_steps": {},
    }
    if split.recording.target == STATE:
        outcomes = split.outcomes(test)
        measured["one_step"] = {
            name: scaled_error(values - outcomes, split.scale) for name, values in predicted.items()
        }
    return measured


def _rounded(values: Numbers) -> list[float]:
    return [float(f"{value:.6g}") for value in values]


Step: TypeAlias = Callable[[Numbers, Sequence[Transition]], Numbers]
"""Next states from states and the actions of transitions."""


def _stepping(predict: Callable[[Sequence[Transition]], Numbers]) -> Step:
    def step(states_ND: Numbers, taken: Sequence[Transition]) -> Numbers:
        imagined = [
            replace(transition, observation={STATE: tuple(state)})
            for state, transition in zip(states_ND.tolist(), taken, strict=True)
        ]
        return states_ND + predict(imagined)

    return step


def _open_loop_error(split: Split, step: Step) -> float:
    """Error after `HORIZON` steps ÷ deviation of the state, with the recorded actions."""
    windows = _windows(split.parts["test"])
    states_ND = states([window[0] for window in windows])
    for number in range(HORIZON):
        states_ND = step(states_ND, [window[number] for window in windows])
    ends = [window[-1].next_observation[STATE] for window in windows]
    return scaled_error(
        states_ND - np.array(ends, dtype=np.float64), states(split.parts["train"]).std(0)
    )


def _windows(test: Sequence[Transition]) -> list[Sequence[Transition]]:
    windows = list[Sequence[Transition]]()
    for _, rows in groupby(test, key=lambda transition: transition.group):
        episode = list(rows)
        starts = range(0, len(episode) - HORIZON + 1, _STRIDE)
        windows += [episode[start : start + HORIZON] for start in starts]
    return windows[:_MOST_STARTS]


def _ours(recording: Recording, seed: int) -> dict[str, Any]:
    with TemporaryDirectory() as folder:
        fitted = fit(Path(folder) / "home", recording, seed)
    split, model, test = Split.of(recording), fitted.model, list(fitted.test)
    answers = predict(model, test)
    predicted: dict[str, Numbers] = {OURS: point(split, answers, test)}
    measured = _compared(split, predicted, test)
    if recording.target == STATE:
        step = _stepping(lambda rows: point(split, predict(model, rows), rows))
        measured["twenty_steps"][OURS] = _open_loop_error(split, step)
    fresh = list(recording.fresh)
    gain, error = _gain_over_base_rate(split, model, fresh or test)
    return {
        **measured,
        **_honesty(split, answers, test),
        **_odd_rows(split, model, test),
        **_likelihood(model, test),
        "published": fitted.publication.published,
        "reason": fitted.publication.reason,
        "gain": gain,
        "gain_error": error,
        "gain_is_fresh": bool(fresh),
        "steps": fitted.steps,
        "seconds": {OURS: fitted.seconds},
        "mebibytes": fitted.mebibytes,
    }


def predict(model: WorldModel, transitions: Sequence[Transition]) -> list[Prediction]:
    """What *model* answers for observation and action of each of *transitions*."""
    return model.predict_batch(
        [each.observation for each in transitions], [each.action for each in transitions]
    )


def point(
    split: Split, answers: Sequence[Prediction], transitions: Sequence[Transition]
) -> Numbers:
    """Probabilities ``[N, L]``, or expected numbers ``[N, D]``; changes of a state."""
    name = split.recording.target
    if split.labels:
        rows = [[each.probabilities[name][label] for label in split.labels] for each in answers]
        return np.array(rows)
    values = [each.next_state[name] for each in answers]
    numbers = np.array(values, dtype=np.float64).reshape(len(values), -1)
    return numbers - states(transitions) if name == STATE else numbers


def _honesty(
    split: Split, answers: Sequence[Prediction], test: Sequence[Transition]
) -> dict[str, float]:
    """Whether the stated uncertainty is right: of numbers their deviation, of labels confidence."""
    if split.labels:
        probability_NL = point(split, answers, test)
        right_N = probability_NL.argmax(1) == split.outcomes(test)
        confidence_N = np.array([each.confidence for each in answers])
        return {
            "accuracy": float(right_N.mean()),
            "mean_confidence": float(confidence_N.mean()),
            "auc_confidence": auc(confidence_N, right_N),
        }
    errors, deviations, half_widths = [], [], []
    for name, error_ND, varies_D in _errors(split, answers, test):
        errors.append(error_ND[:, varies_D])
        deviations.append(_deviations(answers, name)[:, varies_D])
        half_widths.append(_half_widths(answers, name)[:, varies_D])
    error_NK = np.hstack(errors)
    return {
        "error_over_deviation": error_over_deviation(error_NK, np.hstack(deviations)),
        "coverage": coverage(error_NK, np.hstack(half_widths)),
    }


def _odd_rows(split: Split, model: WorldModel, test: Sequence[Transition]) -> dict[str, float]:
    """Accuracy and mean confidence of labels where inputs are odd.

    ``gap``: in each row, one field of the observation is missing. ``far``: one number is far
    outside the training data. The field is drawn for each row.
    """
    if not split.labels:
        return {}
    fields, rng = split.recording.spec.observation, np.random.default_rng(0)
    numbers = {
        name: max(abs(cast("float", row.observation[name] or 0.0)) for row in split.parts["train"])
        for name, field in fields.items()
        if field == Box()
    }
    changes: dict[str, Sequence[tuple[str, float | None]]] = {
        "gap": [(name, None) for name in fields],
        "far": [(name, FAR * (1.0 + largest)) for name, largest in numbers.items()],
    }
    found = {}
    for kind, choices in changes.items():
        if not choices:
            continue
        drawn = [choices[number] for number in rng.integers(len(choices), size=len(test))]
        rows = [
            replace(row, observation={**row.observation, name: value})
            for row, (name, value) in zip(test, drawn, strict=True)
        ]
        answers = predict(model, rows)
        right_N = point(split, answers, rows).argmax(1) == split.outcomes(rows)
        found[f"{kind}_accuracy"] = float(right_N.mean())
        found[f"{kind}_confidence"] = fmean(each.confidence for each in answers)
    return found


def _errors(
    split: Split, answers: Sequence[Prediction], test: Sequence[Transition]
) -> Iterator[tuple[str, Numbers, NDArray[np.bool_]]]:
    """Name, errors and varying dimensions of each target that is a number."""
    error_ND = point(split, answers, test) - split.outcomes(test)
    yield split.recording.target, error_ND, split.scale > 0
    if "reward" in split.recording.spec.targets:
        expected = np.array([[each.expected_improvement] for each in answers], dtype=np.float64)
        reward = np.array([[each.reward] for each in test])
        yield "reward", expected - reward, np.array([True])


def _deviations(answers: Sequence[Prediction], name: str) -> Numbers:
    return np.array([each.deviations[name] for each in answers], dtype=np.float64)


def _half_widths(answers: Sequence[Prediction], name: str) -> Numbers:
    """Half the widths of the stated 90 % intervals, ``[N, D]``."""
    intervals = [each.intervals[name] for each in answers]
    low_ND = np.array([each.low for each in intervals], dtype=np.float64)
    high_ND = np.array([each.high for each in intervals], dtype=np.float64)
    return np.asarray((high_ND - low_ND) / 2)


def _likelihood(model: WorldModel, test: Sequence[Transition]) -> dict[str, float]:
    """Negative log-likelihood of *test* before and after the calibration."""
    fitted = model.fitted_model
    if fitted is None:
        raise RuntimeError("the model was never fitted")
    raw = replace(fitted, calibration=Calibration())
    outcomes = fitted.codec.outcomes(test)
    before_N, after_N = (
        row_nll(each.predict_transitions(test), outcomes, fitted.codec).numpy()
        for each in (raw, fitted)
    )
    groups = [each.group for each in test]
    return {
        "nll_before": float(before_N.mean()),
        "nll_after": float(after_N.mean()),
        "nll_change_error": clustered_error(after_N - before_N, groups),
    }


def _gain_over_base_rate(
    split: Split, model: WorldModel, transitions: Sequence[Transition]
) -> tuple[float, float]:
    """How much better than the base rate the model is, and the standard error of that.

    Squared errors of numbers are compared, not likelihoods: whether a model predicts is one
    question, whether its scale is right another.
    """
    ours = point(split, predict(model, transitions), transitions)
    gain_N = split.losses(split.base(len(transitions)), transitions) - split.losses(
        ours, transitions
    )
    return float(gain_N.mean()), clustered_error(gain_N, [each.group for each in transitions])

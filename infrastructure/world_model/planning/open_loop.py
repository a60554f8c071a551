"""Multi-step error: rollouts under recorded actions, compared with what was recorded.

Shapes: W windows of H steps, M members, X columns of the state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

import torch
from torch import Tensor

from infrastructure.agent_contract.transition import FieldValue, Transition
from infrastructure.trajectories.history import sequences
from infrastructure.world_model.fitting import FittedModel
from infrastructure.world_model.planning.dynamics import Dynamics
from infrastructure.world_model.planning.rollouts import imagine

MAX_WINDOWS = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenLoopError:
    """Squared errors of the state after H steps, as shares of the recorded variance.

    Attributes:
        squared: Error of the members' mean in each window, ``[W]`` float64: the mean over the
            state's columns, each divided by its variance among all recorded states.
        unchanged: Error of the prediction that the state stays as it is, ``[W]`` float64.
        groups: Group of each window.
    """

    squared: Tensor
    unchanged: Tensor
    groups: Sequence[str]

    @property
    def share(self) -> float:
        """Root of the mean squared error: 0 is perfect, 1 no better than the mean state."""
        return float(self.squared.mean().sqrt())


@torch.inference_mode()
def open_loop_error(
    model: FittedModel, transitions: Sequence[Transition], steps: int
) -> OpenLoopError | None:
    """Predict *steps* steps from recorded states, under the recorded actions.

    The windows do not overlap; of more than `MAX_WINDOWS`, an even choice is taken. One with a
    missing number in its first or last state is left out. Means stand for what actions lack and
    for unseen labels.

    Args:
        transitions: Held-out transitions, in the order in which they were recorded.
        steps: Steps of each window.

    Returns:
        None if no sequence is that long, or no state varies.

    Raises:
        ValueError: *steps* is below 1, or the model cannot be rolled out.
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    spec, dynamics = model.spec, Dynamics(model)
    windows = [
        sequence[start : start + steps]
        for sequence in sequences(transitions, spec.current_fields)
        for start in range(0, len(sequence) - steps + 1, steps)
    ]
    windows = windows[:: max(1, -(-len(windows) // MAX_WINDOWS))]
    if not windows:
        return None
    names = [name for name in spec.current_fields if name in spec.targets]
    start_WX = dynamics.start([window[0].observation for window in windows])
    end_WX = dynamics.start([_after(window, names) for window in windows])
    whole_W = (start_WX + end_WX).isfinite().all(dim=1)
    if not bool(whole_W.any()):
        return None
    start_WX, end_WX = start_WX[whole_W], end_WX[whole_W]
    windows = list(compress(windows, whole_W.tolist()))
    actions = [window[step].action for step in range(steps) for window in windows]
    state_MWX = start_WX.expand(dynamics.members, -1, -1)
    imagined = imagine(dynamics, state_MWX, dynamics.encode_values(actions, steps, gaps=True))
    if imagined is None:
        raise RuntimeError("nothing ends a rollout")
    compared = torch.zeros(dynamics.observation.width, dtype=torch.bool)
    for name in names:
        compared[dynamics.observation.columns[name]] = True
    variance_X = torch.cat([start_WX, end_WX]).var(0, correction=0)
    compared &= variance_X > 0
    if not bool(compared.any()):
        return None

    def error(predicted_WX: Tensor) -> Tensor:
        squared_WX = (predicted_WX - end_WX).square() / variance_X
        return squared_WX[:, compared].mean(1)

    return OpenLoopError(
        squared=error(imagined.states[-1].mean(0)),
        unchanged=error(start_WX),
        groups=[window[0].group for window in windows],
    )


def rollout_metrics(model: FittedModel, transitions: Sequence[Transition]) -> dict[str, float]:
    """Return ``rollout_error`` over the spec's ``rollout_steps``, see `OpenLoopError.share`.

    Nothing if the spec asks for none, or if no held-out sequence is that long.
    """
    steps = model.spec.rollout_steps
    error = open_loop_error(model, transitions, steps) if steps else None
    return {} if error is None else {"rollout_error": error.share}


def _after(window: Sequence[Transition], names: Sequence[str]) -> dict[str, FieldValue | None]:
    """Observation after *window*; fields that are not predicted stay."""
    following = window[-1].next_observation
    return {**window[0].observation, **{name: following[name] for name in names}}

"""The publication gate's check of many steps: rollouts of the candidate on held-out sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from infrastructure.agent_contract.transition import Transition, TransitionSpec
from infrastructure.trajectories.history import sequences
from infrastructure.world_model import ModelFileError, WorldModel
from infrastructure.world_model.distributions.metrics import clustered_standard_error
from infrastructure.world_model.fitting import FittedModel
from infrastructure.world_model.model_files import BuildNetwork
from infrastructure.world_model.planning import open_loop_error

_Z_95_ONE_SIDED = 1.645


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutCheck:
    """Result of the check.

    Attributes:
        problem: Why the candidate is not published; empty if it passed, or is not asked for.
        metrics: Multi-step errors of the candidate and of the model in use.
    """

    problem: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)


def check_rollouts(
    candidate: FittedModel,
    published: Path,
    transitions: Sequence[Transition],
    build_network: BuildNetwork,
) -> RolloutCheck:
    """Compare multi-step errors where the spec asks for it by ``rollout_steps``.

    The candidate must predict states better than if they stayed as they are, by 1.645 standard
    errors over the groups, and must not be worse than the model in use by as many. Where no
    sequence is that long, nothing can be checked, and the candidate is refused.

    Args:
        published: Folder of the published model; may be empty or damaged.
        transitions: Test transitions.
    """
    steps = candidate.spec.rollout_steps
    own = open_loop_error(candidate, transitions, steps) if steps else None
    if own is None:
        return RolloutCheck(problem=_too_short(candidate.spec, transitions))
    metrics = {"rollout_error": own.share}
    gain_W = own.unchanged - own.squared
    if not float(gain_W.mean()) > _Z_95_ONE_SIDED * clustered_standard_error(gain_W, own.groups):
        problem = f"after {steps} steps its states do not beat states that stay as they are"
        return RolloutCheck(problem=problem, metrics=metrics)
    try:
        in_use = WorldModel.load(published, build_network).fitted_model
    except (FileNotFoundError, ModelFileError):
        return RolloutCheck(metrics=metrics)
    if in_use is None or in_use.spec != candidate.spec:
        return RolloutCheck(metrics=metrics)
    other = open_loop_error(in_use, transitions, steps)
    if other is None:
        return RolloutCheck(metrics=metrics)
    metrics["in_use.rollout_error"] = other.share
    loss_W = own.squared - other.squared
    problem = ""
    if float(loss_W.mean()) > _Z_95_ONE_SIDED * clustered_standard_error(loss_W, own.groups):
        problem = (
            f"after {steps} steps its error is {own.share:.4f}, against {other.share:.4f} of the "
            f"model in use"
        )
    return RolloutCheck(problem=problem, metrics=metrics)


def _too_short(spec: TransitionSpec, transitions: Sequence[Transition]) -> str:
    """Why no sequence has the spec's ``rollout_steps``; empty if one has."""
    found = [len(sequence) for sequence in sequences(transitions, spec.current_fields)]
    longest = max(found, default=0)
    if longest >= spec.rollout_steps:
        return ""
    return (
        f"states after {spec.rollout_steps} steps cannot be checked: the longest of {len(found)} "
        f"held-out sequences has {longest} steps. Lower rollout_steps, or record longer sequences"
    )

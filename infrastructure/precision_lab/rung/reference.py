"""Whether the frozen reference of a policy job is to blame: its copy holds what FP16 cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.nn import Module

from infrastructure.agent_contract.on_policy_job import LogProbFunctions
from infrastructure.agent_contract.training_job import Batch
from infrastructure.events import PrecisionName, Role
from infrastructure.events.event import RungSearched
from infrastructure.events.role_precision import HalfName, RolePrecision, RolePrecisions
from infrastructure.precision_lab.bisect.bisect import TOLERANCE
from infrastructure.precision_lab.bisect.noise_floor import Deviation, NoiseFloor, NotFiniteError
from infrastructure.precision_lab.environment import fixed_numerics
from infrastructure.precision_lab.experiment import ExperimentResult, Region
from infrastructure.precision_lab.kernels import Kernels, RegionKernels
from infrastructure.precision_lab.replay.preset_kernels import PresetKernels


@dataclass(frozen=True, kw_only=True, slots=True)
class ReferenceExperiment:
    """The log-probabilities of a reference on frozen batches; see `Experiment`.

    Attributes:
        models: The reference alone, float32, in evaluation mode.
        batches: Batches of the job.
        functions: How the job computes them.
        keep_fp32: See `Experiment`.
    """

    models: Mapping[Role, Module]
    batches: Sequence[Batch]
    functions: LogProbFunctions
    keep_fp32: Sequence[str] = ()

    def run(self, region: Region) -> ExperimentResult:
        """See `Experiment.run`."""
        return self._run_with(RegionKernels(self.models, region))

    def run_in(self, types: RolePrecision) -> ExperimentResult:
        """Compute them as a training does whose reference has *types*."""
        precisions = RolePrecisions(name="reference", roles={Role.REFERENCE: types})
        return self._run_with(PresetKernels(self.models, precisions))

    @torch.no_grad()
    def _run_with(self, kernels: Kernels) -> ExperimentResult:
        model, values = kernels.model(Role.REFERENCE), []
        for batch in self.batches:
            _, mask_BS = self.functions.recorded(batch)
            values.append(self.functions.policy(model, batch)[mask_BS].float().cpu())
        return ExperimentResult(quantities={"log_probs": torch.cat(values)})


def search_reference(
    experiment: ReferenceExperiment,
    types: RolePrecision,
    other: HalfName | None,
    found: RungSearched,
) -> RungSearched:
    """What was *found* of the policy, or that the reference needs another precision.

    Only where half precision is not to blame in the policy's own steps, and the reference's results
    are not finite in *types*, and are in FP32: losses are not finite then.

    Args:
        other: Half type that may replace that of *types*; None for FP32 alone.
    """
    if found.cause != "unexplained" or not found.agrees:
        return found
    with fixed_numerics():
        try:
            broken = _deviation(experiment, types)
        except NotFiniteError:
            return found
        if broken.ratio < float("inf"):
            return found
        chosen: PrecisionName = "fp32"
        if other and _deviation(experiment, types.in_half(other)).ratio <= TOLERANCE:
            chosen = other
    reason = (
        f"{chosen.upper()} in the reference suffices: its log-probabilities are not finite as "
        f"{types}, and the policy's own steps agree with FP32, {found.half_deviation:.1f} times "
        "the noise floor"
    )
    changes = {"cause": "roles", "roles": {Role.REFERENCE: chosen}, "reason": reason}
    return found.model_copy(update=changes)


def _deviation(experiment: ReferenceExperiment, types: RolePrecision) -> Deviation:
    floor = NoiseFloor(experiment, {Role.REFERENCE: types})
    return floor.deviation(experiment.run_in(types))

"""A frozen experiment under one preset after the other, against FP32."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from infrastructure.agent_contract.run_context import ReportProgress
from infrastructure.events import Role
from infrastructure.events.role_precision import PRESETS, RolePrecisions, find_preset
from infrastructure.files import write_json
from infrastructure.policy import TokenBatch
from infrastructure.precision_lab import computations
from infrastructure.precision_lab.environment import describe_environment, fixed_numerics
from infrastructure.precision_lab.experiment import ExperimentResult, in_fp32
from infrastructure.precision_lab.experiments import PolicyExperiment, WorldModelExperiment
from infrastructure.precision_lab.frozen import FrozenFolder
from infrastructure.precision_lab.frozen.manifest import MANIFEST
from infrastructure.precision_lab.progress import unreported
from infrastructure.precision_lab.replay.measured import measured
from infrastructure.precision_lab.replay.preset_kernels import PresetKernels
from infrastructure.precision_lab.results import FORMAT

ALL = "all"
TRAINER_LOG_PROBS = "trainer_log_probs"
"""Quantity: log-probabilities of the old policy's weights as the trainer computes them."""

_LOSS_SCALE, _BACKOFF = 65536.0, 16.0
_COMPUTATIONS = (Role.KL, Role.ADVANTAGE)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Replay:
    """A repetition under a preset.

    Attributes:
        preset: The preset.
        outcome: What was computed.
        loss_scale: Factor of the loss in the backward pass; 1 where no FP16 role is trained, or the
            preset is pure: `GradScaler` refuses gradients of half weights.
        roles: Roles that the experiment has.
        seconds: Time it took, with the copies of the models.
    """

    preset: RolePrecisions
    outcome: ExperimentResult
    loss_scale: float
    roles: tuple[Role, ...]
    seconds: float

    def describe(self, folder: FrozenFolder, device: torch.device) -> dict[str, object]:
        """Origin of a result, for JSON: preset, types, frozen data, environment."""
        manifest = folder.manifest
        return {
            "format": FORMAT,
            "preset": self.preset.name,
            "pure": self.preset.pure,
            "kind": manifest.kind,
            "seed": manifest.seed,
            "precision": {role: str(self.preset[role]) for role in self.roles},
            "loss_scale": self.loss_scale,
            "environment": describe_environment(device),
            "frozen": {
                "folder": str(folder.path),
                "manifest_sha256": hashlib.sha256(
                    (folder.path / MANIFEST).read_bytes()
                ).hexdigest(),
                "source": manifest.source,
                "weights_sha256": {
                    role: manifest.files[name].sha256 for role, name in manifest.weights.items()
                },
            },
        }


def chosen_presets(name: str, roles: Mapping[Role, object] | None = None) -> list[RolePrecisions]:
    """The preset of this name, or all.

    Args:
        name: Name of a preset, or ``all``.
        roles: Roles of the experiment; of all presets those are left out that have no half type
            for any of them, except the FP32 baseline.

    Raises:
        UnknownPresetError: No preset has this name.
    """
    if name != ALL:
        return [find_preset(name)]
    return [
        preset
        for preset in PRESETS.values()
        if roles is None or preset.half is None or any(preset[role].is_half for role in roles)
    ]


def replay_under(
    experiment: PolicyExperiment | WorldModelExperiment, preset: RolePrecisions
) -> Replay:
    """Repeat *experiment* under *preset*.

    Where a loss scale is needed, the first of 2^16, 2^12, 2^8, 2^4 and 1 is taken that leaves the
    gradients finite, as a training's backs off.
    """
    started = time.monotonic()
    kernels = PresetKernels(experiment.models, preset, experiment.keep_fp32)
    scaled = not preset.pure and any(role in preset.scaled_roles for role in experiment.models)
    scale = _LOSS_SCALE if scaled else 1.0
    with fixed_numerics():
        while True:
            outcome = replace(experiment, loss_scale=scale).run_with(kernels)
            if scale <= 1.0 or all(g.isfinite().all() for g in outcome.gradients().values()):
                break
            scale /= _BACKOFF
        if isinstance(experiment, PolicyExperiment):
            extra = _trainer_log_probs(experiment, kernels)
            outcome = replace(outcome, quantities={**outcome.quantities, TRAINER_LOG_PROBS: extra})
    computed = _COMPUTATIONS if isinstance(experiment, PolicyExperiment) else ()
    return Replay(
        preset=preset,
        outcome=outcome,
        loss_scale=scale,
        roles=(*experiment.models, *computed),
        seconds=time.monotonic() - started,
    )


@torch.no_grad()
def _trainer_log_probs(experiment: PolicyExperiment, kernels: PresetKernels) -> Tensor:
    """Log-probabilities of the rollout's weights, computed as the trainer computes them.

    Their difference from ``rollout_log_probs`` is the mismatch.
    """
    model = kernels.model_as(experiment.models[Role.ROLLOUT], Role.POLICY)
    by_batch = []
    for tensors in experiment.batches:
        batch = TokenBatch.from_tensors(tensors)
        logits_BTV = model(**batch.model_inputs(), use_cache=False).logits
        log_probs_BS = computations.log_probs_of(logits_BTV, batch, experiment.training.temperature)
        by_batch.append(log_probs_BS.float().cpu())
    return computations.stacked(by_batch)


def replay_folder(
    folder: FrozenFolder,
    experiment: PolicyExperiment | WorldModelExperiment,
    preset_name: str,
    output: Path,
    progress: ReportProgress = unreported,
) -> list[dict[str, object]]:
    """Repeat *experiment* under a preset or all; write a result for each and return them.

    Args:
        folder: Where *experiment* comes from.
        preset_name: Name of a preset, or ``all``.
        output: Folder of results; ``replay/<preset>.json`` is replaced.
        progress: Told of each preset.

    Raises:
        UnknownPresetError: No preset has this name; nothing is computed.
        OSError: The disk refuses; earlier results are kept.
    """
    presets = chosen_presets(preset_name, experiment.models)
    (output / "replay").mkdir(parents=True, exist_ok=True)
    progress(0, len(presets), unit="presets repeated")
    with fixed_numerics():
        exact = experiment.run(in_fp32)
    results = []
    device = next(next(iter(experiment.models.values())).parameters()).device
    for number, preset in enumerate(presets, start=1):
        replayed = replay_under(experiment, preset)
        result = {
            **replayed.describe(folder, device),
            "keep_fp32": list(experiment.keep_fp32),
            "seconds": replayed.seconds,
            **measured(replayed.outcome, exact, preset),
        }
        path = output / "replay" / f"{preset.name}.json"
        write_json(path, result)
        results.append(result)
        progress(number, len(presets), unit="presets repeated")
    return results

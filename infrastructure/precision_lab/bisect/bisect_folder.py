"""Bisection of a frozen experiment under a preset, written as ``bisect.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from infrastructure.agent_contract.run_context import ReportProgress
from infrastructure.events.role_precision import find_preset
from infrastructure.files import write_json
from infrastructure.precision_lab.bisect.bisect import Bisection, Culprit, bisect
from infrastructure.precision_lab.bisect.noise_floor import Deviation
from infrastructure.precision_lab.environment import fixed_numerics
from infrastructure.precision_lab.errors import LabError
from infrastructure.precision_lab.experiments import PolicyExperiment, WorldModelExperiment
from infrastructure.precision_lab.frozen import FrozenFolder
from infrastructure.precision_lab.progress import unreported
from infrastructure.precision_lab.replay import replay_under

BISECT = "bisect.json"


class NothingHalfError(LabError):
    """The preset computes every role of the experiment in FP32."""

    def __init__(self, preset: str) -> None:
        super().__init__(
            f"preset {preset} has no half precision in any role of the experiment, so there is "
            "nothing to search. Choose another preset: see genesis-fp16 lab replay --preset all"
        )


def bisect_folder(
    folder: FrozenFolder,
    experiment: PolicyExperiment | WorldModelExperiment,
    preset_name: str,
    output: Path,
    tolerance: float,
    progress: ReportProgress = unreported,
) -> Bisection:
    """Find the places of *experiment* that lose most under a preset; write ``bisect.json``.

    The search computes place by place with `Numerics`, and the trainer with its own forward passes.
    The result has the deviation of both, so that a difference can be seen.

    Args:
        folder: Where *experiment* comes from.
        preset_name: Name of the preset.
        output: Folder of results.
        tolerance: Multiple of the noise floor that a result may be off.
        progress: Told of each repetition.

    Raises:
        UnknownPresetError: No preset has this name.
        NothingHalfError: The preset has no half type for a role of *experiment*.
        NotFiniteError: The FP32 result is not finite.
        OSError: The disk refuses.
    """
    preset = find_preset(preset_name)
    replayed = replay_under(experiment, preset)
    if not any(preset[role].is_half for role in replayed.roles):
        raise NothingHalfError(preset_name)
    with fixed_numerics():
        scaled = replace(experiment, loss_scale=replayed.loss_scale)
        bisection = bisect(scaled, preset, tolerance=tolerance, progress=progress)
    device = next(next(iter(experiment.models.values())).parameters()).device
    result: dict[str, object] = {
        **replayed.describe(folder, device),
        "trainer": _deviation(bisection.floor.deviation(replayed.outcome)),
        **_of(bisection),
    }
    output.mkdir(parents=True, exist_ok=True)
    write_json(output / BISECT, result)
    return bisection


def _of(bisection: Bisection) -> dict[str, object]:
    return {
        "tolerance": bisection.tolerance,
        "half": _deviation(bisection.half),
        "cured": _deviation(bisection.cured),
        "with_cure": _deviation(bisection.with_cure),
        "culprits": [_culprit(culprit) for culprit in bisection.culprits],
        "keep_fp32": {role: list(names) for role, names in bisection.cure.keep_fp32.items()},
        "roles": {role: str(precision) for role, precision in bisection.cure.roles.items()},
        "settings": bisection.cure.lines(),
        "places": len(bisection.places),
        "runs": bisection.runs,
        "seconds": bisection.seconds,
        "time_ratio": bisection.time_ratio,
        "noise_floor": dict(bisection.floor.errors),
    }


def _culprit(culprit: Culprit) -> Mapping[str, object]:
    return {
        "place": str(culprit.place),
        "share": culprit.share,
        "without": _deviation(culprit.without),
        "alone": _deviation(culprit.alone),
        "partners": [str(partner) for partner in culprit.partners],
    }


def _deviation(deviation: Deviation) -> Mapping[str, object]:
    return {"ratio": deviation.ratio, "quantity": deviation.quantity, "error": deviation.error}

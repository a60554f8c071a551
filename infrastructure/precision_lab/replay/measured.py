"""What a repetition has lost against FP32, by the lab's metrics.

B sequences, S predicted tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import torch
from torch import Tensor

from infrastructure.events import Role
from infrastructure.events.role_precision import RolePrecisions
from infrastructure.precision_lab.experiment import GRADIENT, ExperimentResult
from infrastructure.precision_lab.metrics import (
    exact_kl_penalty_mean,
    measure_accumulated_error,
    measure_clipping,
    measure_error,
    measure_kl,
    measure_reward_resolution,
    measure_values,
)

_MOST_TOKENS = 4096  # of each distribution in a result


def measured(
    outcome: ExperimentResult, exact: ExperimentResult, preset: RolePrecisions
) -> dict[str, object]:
    """Errors, metrics, gradients and distributions of a result, for JSON.

    Args:
        outcome: What was computed under *preset*.
        exact: The same in FP32.
        preset: Types of the roles.

    Returns:
        ``loss`` and ``exact_loss`` of each batch; ``errors`` of each quantity, see
        `PrecisionError`; ``gradients``; of a policy also ``metrics`` by the names of dtype-rlhf,
        and ``tokens``, values of the first valid tokens for histograms.
    """
    result: dict[str, object] = {
        "loss": outcome.quantities["loss"].tolist(),
        "exact_loss": exact.quantities["loss"].tolist(),
        "not_finite": sorted(n for n, v in outcome.quantities.items() if not v.isfinite().all()),
        "errors": _errors(outcome, exact),
        "gradients": gradient_errors(outcome.gradients(), exact.gradients()),
    }
    if outcome.mask_BS is not None:
        result["metrics"] = _policy_metrics(outcome, exact, outcome.mask_BS, preset)
        result["tokens"] = _distributions(outcome, exact, outcome.mask_BS)
    return result


def _errors(outcome: ExperimentResult, exact: ExperimentResult) -> dict[str, object]:
    errors: dict[str, object] = {}
    for name, value in exact.quantities.items():
        if not name.startswith(GRADIENT):
            mask = exact.mask_BS if value.ndim == 2 else None
            errors[name] = asdict(measure_error(outcome.quantities[name], value, mask))
    return errors


def gradient_errors(
    gradients: Mapping[str, Tensor], exact: Mapping[str, Tensor]
) -> dict[str, object]:
    """Error of gradients against *exact* ones of the same names.

    Returns:
        ``norm`` and ``exact_norm``; ``relative_error``, the norm of the difference divided by the
        exact norm; ``cosine`` of both; ``flushed``, the share of entries that are 0 and should not
        be; ``by_parameter``, the relative error of each. float64.
    """
    flat, exact_flat = (
        torch.cat([tensors[n].double().flatten() for n in exact]) for tensors in (gradients, exact)
    )
    norm, exact_norm = flat.norm(), exact_flat.norm()
    return {
        "norm": norm.item(),
        "exact_norm": exact_norm.item(),
        "relative_error": _relative(flat, exact_flat),
        "cosine": (flat @ exact_flat / (norm * exact_norm)).item(),
        "flushed": ((flat == 0) & (exact_flat != 0)).double().mean().item(),
        "by_parameter": {
            n: _relative(gradients[n].double(), value.double()) for n, value in exact.items()
        },
    }


def _relative(value: Tensor, exact: Tensor) -> float:
    smallest = torch.finfo(torch.float64).tiny
    return float(((value - exact).norm() / exact.norm().clamp(min=smallest)).item())


def _policy_metrics(
    outcome: ExperimentResult, exact: ExperimentResult, mask_BS: Tensor, preset: RolePrecisions
) -> dict[str, object]:
    quantities, expected = outcome.quantities, exact.quantities
    of_kl, of_value = preset[Role.KL].compute, preset[Role.VALUE].out
    log_probs_BS, reference_BS = quantities["log_probs"], quantities["reference_log_probs"]
    return {
        **asdict(measure_kl(log_probs_BS, reference_BS, mask_BS, precision=of_kl)),
        "exact_kl_penalty_mean": exact_kl_penalty_mean(
            expected["log_probs"], expected["reference_log_probs"], mask_BS
        ),
        **asdict(measure_reward_resolution(quantities["rewards"])),
        **asdict(measure_values(quantities["values"], mask_BS, precision=of_value)),
        **asdict(
            measure_clipping(
                log_probs_BS,
                quantities["old_log_probs"],
                mask_BS,
                precision=preset[Role.POLICY].out,
            )
        ),
        **asdict(measure_accumulated_error(log_probs_BS, expected["log_probs"], mask_BS)),
        "reference_accum_err_final": measure_accumulated_error(
            reference_BS, expected["reference_log_probs"], mask_BS
        ).accum_err_final,
        "mismatch_k3": _mismatch(
            quantities["trainer_log_probs"], quantities["rollout_log_probs"], mask_BS
        ),
    }


def _mismatch(trainer_BS: Tensor, rollout_BS: Tensor, mask_BS: Tensor) -> float:
    """Mean of k3 per token, an estimate of KL(rollout || trainer) for the same weights."""
    r = (trainer_BS.double() - rollout_BS.double())[mask_BS]
    return (r.expm1() - r).mean().item()


def _distributions(
    outcome: ExperimentResult, exact: ExperimentResult, mask_BS: Tensor
) -> dict[str, list[float]]:
    quantities, expected = outcome.quantities, exact.quantities
    values = {
        "log_prob_error": quantities["log_probs"] - expected["log_probs"],
        "mismatch": quantities["trainer_log_probs"] - quantities["rollout_log_probs"],
        "ratio": quantities["ratio"],
        "log_ratio": quantities["log_ratio"],
        "kl": quantities["kl"],
        "value": quantities["values"],
    }
    return {name: value[mask_BS][:_MOST_TOKENS].tolist() for name, value in values.items()}

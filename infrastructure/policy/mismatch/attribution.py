"""Find the role whose rounding causes a mismatch: one frozen batch under other precisions.

The tokens stay the same, and so do the weights, the order of operations and the shapes; only the
precision of one role or of both changes. What remains with both in FP32 is not rounding: the
rollout's cache, the shape of its batches, its kernels, or weights that are older than the policy's.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

import torch
from torch import Tensor

from infrastructure.events.mismatch_report import Combination, MismatchReport, ReferenceReport
from infrastructure.events.precision_state import PrecisionName
from infrastructure.policy.mismatch.measures import measure, summary

LogProbs = Callable[[PrecisionName], Tensor]


def report_mismatch(
    recorded_BS: Tensor,
    mask_BS: Tensor,
    *,
    policy: LogProbs,
    rollout: LogProbs,
    in_force: tuple[PrecisionName, PrecisionName],
    halves: Sequence[PrecisionName] = (),
) -> MismatchReport:
    """Measure one batch under the precisions in force, in FP32, and in each of *halves*.

    The rollout's part under its present precision is what it recorded. With both roles in FP32
    the batch is measured once: what it shows is the floor. A precision whose logits overflow is
    left out of the combinations.

    Args:
        recorded_BS: Log-probabilities that the rollout recorded, float32.
        mask_BS: True for valid response tokens.
        policy: Computes log-probabilities of the batch [B, S] as the trainer does, in a precision.
        rollout: Computes them as the rollout does: token by token, with its cache, on its weights.
        in_force: Precision that the trainer computes in now, and that the rollout recorded in.
        halves: Half types that the device has and that may be tried.

    Raises:
        MismatchError: The present log-probabilities cannot be compared.
    """
    began = time.perf_counter()
    policy_precision, rollout_precision = in_force
    policies_BS = {policy_precision: policy(policy_precision)}
    rollouts_BS = {rollout_precision: recorded_BS}
    present = measure(policies_BS[policy_precision], recorded_BS, mask_BS)
    if in_force != ("fp32", "fp32"):
        others: list[PrecisionName] = ["fp32", *halves]
        policies_BS |= _computed(policy, [name for name in others if name != policy_precision])
        rollouts_BS |= _computed(rollout, [name for name in others if name != rollout_precision])
    policies_N, rollouts_N = _valid(policies_BS, mask_BS), _valid(rollouts_BS, mask_BS)
    combinations = []
    for (of_policy, pi_N), (of_rollout, mu_N) in itertools.product(
        policies_N.items(), rollouts_N.items()
    ):
        k3, difference = summary(pi_N, mu_N)
        if not math.isnan(k3):
            combinations.append(
                Combination(policy=of_policy, rollout=of_rollout, k3=k3, mean_difference=difference)
            )
    return MismatchReport(
        policy=policy_precision,
        rollout=rollout_precision,
        combinations=tuple(combinations),
        seconds=time.perf_counter() - began,
        **asdict(present),
    )


def report_reference(
    mask_BS: Tensor, *, reference: LogProbs, in_force: PrecisionName
) -> ReferenceReport:
    """Measure how far the reference's log-probabilities are from those of its weights in FP32.

    Args:
        mask_BS: True for valid response tokens.
        reference: Computes log-probabilities of the batch [B, S] by the reference in a precision.
        in_force: Precision that it computes in now.

    Raises:
        MismatchError: The log-probabilities cannot be compared.
    """
    began = time.perf_counter()
    present_BS = reference(in_force)
    exact_BS = present_BS if in_force == "fp32" else reference("fp32")
    measurement = measure(present_BS, exact_BS, mask_BS)
    seconds = time.perf_counter() - began
    return ReferenceReport(precision=in_force, seconds=seconds, **asdict(measurement))


def _computed(
    log_probs: LogProbs, precisions: Sequence[PrecisionName]
) -> dict[PrecisionName, Tensor]:
    """Log-probabilities in each of *precisions*, without those that raise; may hold NaN."""
    log_probs_BS = {}
    for name in precisions:
        try:
            log_probs_BS[name] = log_probs(name)
        except ArithmeticError:  # of the rollout: its logits are not finite
            continue
    return log_probs_BS


def _valid(
    log_probs_BS: Mapping[PrecisionName, Tensor], mask_BS: Tensor
) -> dict[PrecisionName, Tensor]:
    """Those of valid tokens, on the host, in float64."""
    valid_BS = mask_BS.to("cpu", torch.bool)
    return {
        name: values_BS.to("cpu", torch.float64)[valid_BS]
        for name, values_BS in log_probs_BS.items()
    }

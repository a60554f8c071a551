"""H1: does a KL computed in BF16 collapse?

One change: the type of the role ``kl``. Policy and reference compute in FP32, and the same
log-probabilities go into every computation. Shapes: B sequences, S predicted tokens.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from benchmarks.precision_lab.hypotheses.material import Material, moved_policies
from benchmarks.precision_lab.hypotheses.verdicts import Claim
from infrastructure.events.precision_state import PrecisionName
from infrastructure.precision_lab.metrics import measure_kl
from infrastructure.precision_lab.metrics.kl import kl_penalty, log_ratio
from infrastructure.precision_lab.metrics.valid import rounded

DIVERGENCES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
LOADED_DIVERGENCES = (1e-3, 1e-2)
DECIDING = 1e-3  # nats per token

CLAIMS = (
    Claim(
        hypothesis="H1",
        text=(
            "a KL penalty computed in BF16 has lost more than half of its exact value where policy "
            f"and reference are {DECIDING:g} nats per token apart"
        ),
        figure=f"bf16 KL at {DECIDING:g}: lost share of the penalty",
        confirmed_above=0.5,
        refuted_below=0.1,
        would_decide="more tokens for each seed: the error of a token is a multiple of its penalty",
    ),
)


def measure_collapse(material: Material, divergences: tuple[float, ...]) -> dict[str, float]:
    """Figures of one seed, by name.

    At each divergence, for a KL in BF16 and in FP16: the share of the exact mean penalty that is
    lost (negative: the result is too large), the error of ``kl_mc_mean`` as a share of it, the
    share of tokens whose log-ratio is 0, and the root of the mean squared error of a token's
    penalty as a multiple of the mean penalty. For BF16 also what remains lost if only the
    log-probabilities are rounded, or only the formula computes in BF16, and with the exact
    formula of a log-ratio in BF16.
    """
    mask_BS, reference_BS = material.completions.response_mask_BS, material.log_probs_BS
    figures: dict[str, float] = {}
    for wanted, (exact, policy_BS) in zip(
        divergences, moved_policies(material, divergences), strict=True
    ):
        at = f"at {wanted:g}"
        figures[f"exact penalty {at}"] = exact
        exact_mc = measure_kl(policy_BS, reference_BS, mask_BS).kl_mc_mean
        precisions: tuple[PrecisionName, ...] = ("bf16", "fp16", "fp32")
        for precision in precisions:
            found = measure_kl(policy_BS, reference_BS, mask_BS, precision=precision)
            token_error = _token_error(policy_BS[mask_BS], reference_BS[mask_BS], precision)
            mc_error = abs(found.kl_mc_mean - exact_mc)
            measured = {
                "lost share of the penalty": 1 - found.kl_penalty_mean / exact,
                "error of kl_mc_mean / penalty": mc_error / exact,
                "log_ratio_near_zero_frac": found.log_ratio_near_zero_frac,
                "error of a token / mean penalty": token_error / exact,
            }
            figures |= {f"{precision} KL {at}: {name}": each for name, each in measured.items()}
        for name, lost in _parts(policy_BS[mask_BS], reference_BS[mask_BS], exact).items():
            figures[f"{name} {at}: lost share of the penalty"] = lost
    return figures


def _token_error(policy_N: Tensor, reference_N: Tensor, precision: PrecisionName) -> float:
    """Root of the mean squared error of the penalty of a token, nats."""
    found_N = kl_penalty(log_ratio(policy_N, reference_N, precision)).double()
    exact_N = kl_penalty(policy_N.double() - reference_N.double())
    return (found_N - exact_N).square().mean().sqrt().item()


def _parts(policy_N: Tensor, reference_N: Tensor, exact: float) -> Mapping[str, float]:
    """Lost share if a part of the computation is in BF16 and the rest is exact."""
    coarse_N = rounded(policy_N, "bf16").double() - rounded(reference_N, "bf16").double()
    fine_N = policy_N.double() - reference_N.double()
    ratio_N = rounded(fine_N, "bf16")
    stable_N = rounded(coarse_N, "bf16").double()
    penalties_N = {
        "only the log-probabilities rounded": kl_penalty(coarse_N),
        "only the formula in bf16": kl_penalty(ratio_N).double(),
        "exact formula of a bf16 log-ratio": torch.expm1(stable_N) - stable_N,
    }
    return {name: 1 - each.mean().item() / exact for name, each in penalties_N.items()}

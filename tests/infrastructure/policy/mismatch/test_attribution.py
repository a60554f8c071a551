"""Attribution with a real model: the rollout computes with a cache, the trainer all at once."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from infrastructure.events.mismatch_report import MismatchReport, attribute
from infrastructure.events.precision_state import PrecisionName
from infrastructure.policy import TokenBatch
from infrastructure.policy.mismatch import MismatchError, report_mismatch
from infrastructure.training.precision import Precision, PrecisionForward
from infrastructure.training.precision.roles import RoleForward, RolePrecision
from tests.infrastructure.policy.mismatch.policy_job import FUNCTIONS, a_model, sampled

CPU = torch.device("cpu")


class Roles:
    """Trainer and rollout of one model over the same tokens; counts what they compute."""

    def __init__(self, rollout: PrecisionName, scale: float = 1.0) -> None:
        self.model, self.scale = a_model(), scale
        self.forward = RoleForward(self.model, CPU, _types(rollout))
        self.batch: TokenBatch = sampled(self.forward, seed=3, rows=24, tokens=32)
        self.calls: list[tuple[str, str]] = []

    def policy(self, precision: PrecisionName) -> Tensor:
        self.calls.append(("policy", precision))
        with torch.no_grad():
            forward = PrecisionForward(self.model, CPU, Precision(precision))
            return FUNCTIONS.policy(forward, self.batch.to_tensors()) * self.scale

    def rollout(self, precision: PrecisionName) -> Tensor:
        self.calls.append(("rollout", precision))
        self.forward.set_precision(_types(precision))
        return FUNCTIONS.rollout(self.forward, self.batch.to_tensors())


def _types(precision: PrecisionName) -> RolePrecision:
    return RolePrecision(precision, precision, "fp32")


def report(
    roles: Roles,
    policy: PrecisionName,
    rollout: PrecisionName,
    halves: tuple[PrecisionName, ...] = ("fp16", "bf16"),
) -> MismatchReport:
    recorded_BS = roles.batch.log_probs_BS
    assert recorded_BS is not None
    return report_mismatch(
        recorded_BS,
        roles.batch.response_mask_BS,
        policy=roles.policy,
        rollout=roles.rollout,
        in_force=(policy, rollout),
        halves=halves,
    )


@pytest.fixture(scope="module")
def measured() -> Callable[[PrecisionName, PrecisionName], MismatchReport]:
    found = {}

    def measure(policy: PrecisionName, rollout: PrecisionName) -> MismatchReport:
        if (policy, rollout) not in found:
            found[policy, rollout] = report(Roles(rollout), policy, rollout)
        return found[policy, rollout]

    return measure


@pytest.mark.process
def test_rounding_is_separated_from_the_order_of_operations(measured) -> None:
    bf16, fp16 = measured("bf16", "bf16"), measured("fp16", "fp16")
    assert 20 < bf16.k3 / fp16.k3 < 200
    assert bf16.floor_k3 < 1e-10 < fp16.k3
    assert bf16.is_rounding
    assert len(bf16.combinations) == 9
    assert bf16.k3_of("bf16", "bf16") == bf16.k3
    assert bf16.seconds > 0


@pytest.mark.process
@pytest.mark.parametrize(
    ("policy", "rollout", "guilty", "cure"),
    [
        ("fp16", "bf16", ("rollout",), ("fp16", "fp32")),
        ("bf16", "fp16", ("policy",), ("fp32", "fp32")),
        ("bf16", "bf16", ("policy", "rollout"), ("fp32", "fp32")),
    ],
)
def test_the_coarser_role_is_guilty(measured, policy, rollout, guilty, cure) -> None:
    verdict = attribute([measured(policy, rollout)], other_half_allowed=False)
    assert (verdict.guilty, (verdict.policy, verdict.rollout)) == (guilty, cure)
    half = attribute([measured(policy, rollout)], other_half_allowed=True)
    assert (half.policy, half.rollout) == ("fp16", "fp16")


@pytest.mark.process
def test_another_distribution_is_not_rounding() -> None:
    """The trainer forgets the temperature: FP32 differs as much."""
    found = report(Roles("bf16", scale=1.05), "bf16", "bf16", ())
    assert found.floor_k3 == pytest.approx(found.k3, rel=0.5)
    assert not found.is_rounding


def test_in_fp32_nothing_is_repeated() -> None:
    roles = Roles("fp32")
    found = report(roles, "fp32", "fp32")
    assert roles.calls == [("policy", "fp32")]
    assert found.floor_k3 == found.k3
    assert not found.is_rounding


@pytest.mark.process
def test_each_role_is_computed_once_in_each_precision() -> None:
    roles = Roles("bf16")
    report(roles, "fp16", "bf16")
    assert sorted(roles.calls) == [
        *[("policy", "bf16"), ("policy", "fp16"), ("policy", "fp32")],
        *[("rollout", "fp16"), ("rollout", "fp32")],
    ]


def test_a_precision_that_overflows_is_no_cure() -> None:
    roles = Roles("bf16")
    with torch.no_grad():  # beyond FP16, within BF16
        roles.model.model.embed_tokens.weight.mul_(1e6)
        roles.model.model.layers[0].mlp.down_proj.weight.mul_(1e6)
    roles.forward.update(roles.model)
    roles.batch = sampled(roles.forward, seed=3)
    found = report(roles, "bf16", "bf16")
    assert found.k3_of("bf16", "fp16") is None
    assert found.k3_of("fp16", "bf16") is None
    assert found.floor_k3 >= 0
    with pytest.raises(MismatchError, match="NaN"):
        report(roles, "fp16", "bf16")


def test_a_rollout_without_a_chance_for_a_token_is_no_cure() -> None:
    roles = Roles("bf16")

    def rollout(precision: PrecisionName) -> Tensor:
        return torch.full_like(roles.rollout(precision), -math.inf)

    recorded_BS, mask_BS = FUNCTIONS.recorded(roles.batch.to_tensors())
    found = report_mismatch(
        recorded_BS, mask_BS, policy=roles.policy, rollout=rollout, in_force=("bf16", "bf16")
    )
    assert [(each.policy, each.rollout) for each in found.combinations] == [
        ("bf16", "bf16"),
        ("fp32", "bf16"),
    ]
    assert math.isnan(found.floor_k3)


def test_rescoring_repeats_what_was_recorded() -> None:
    roles = Roles("fp16")
    recorded_BS, mask_BS = FUNCTIONS.recorded(roles.batch.to_tensors())
    assert torch.equal(roles.rollout("fp16"), recorded_BS)
    assert mask_BS.any()
    assert math.isfinite(recorded_BS.sum())

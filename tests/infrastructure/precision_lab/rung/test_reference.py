"""A frozen reference is to blame where its copy in half precision holds what FP16 cannot.

B sequences, S tokens, F features, A actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from infrastructure.agent_contract.on_policy_job import LogProbFunctions
from infrastructure.events import Role
from infrastructure.events.event import RungSearched
from infrastructure.events.role_precision import RolePrecision
from infrastructure.precision_lab.rung.reference import ReferenceExperiment, search_reference

FP16 = RolePrecision.parse("fp16/fp16/fp32")
AGREES = RungSearched(step=9, cause="unexplained", reason="FP16 agrees", half_deviation=1.0)


def log_probs(forward: Any, batch: Mapping[str, Tensor]) -> Tensor:
    of_BSA = forward(batch["state_BS"]).log_softmax(-1)
    chosen_BS: Tensor = of_BSA.gather(-1, batch["action_BS"].unsqueeze(-1))[..., 0]
    return chosen_BS


def recorded(batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Some tokens do not count."""
    return batch["action_BS"].float(), batch["action_BS"] > 0


def experiment(scale: float) -> ReferenceExperiment:
    """States that are as far as *scale* from 0 are normalised: the policy's are float32."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(8, 16), nn.LayerNorm(16), nn.Linear(16, 4))
    with torch.no_grad():
        model[0].weight.mul_(scale)
    batches = [
        {"state_BS": torch.randint(8, (4, 6)), "action_BS": torch.randint(4, (4, 6))}
        for _ in range(2)
    ]
    functions = LogProbFunctions(recorded=recorded, policy=log_probs, rollout=log_probs)
    return ReferenceExperiment(
        models={Role.REFERENCE: model.requires_grad_(False).eval()},
        batches=batches,
        functions=functions,
    )


@pytest.mark.parametrize(("other", "chosen"), [(None, "fp32"), ("bf16", "bf16")])
def test_a_reference_that_overflows_needs_another_precision(other: Any, chosen: str) -> None:
    found = search_reference(experiment(1e5), FP16, other, AGREES)
    assert (found.cause, found.roles, found.step) == ("roles", {Role.REFERENCE: chosen}, 9)
    assert found.reason.startswith(f"{chosen.upper()} in the reference suffices: ")


def test_a_healthy_reference_or_a_policy_to_blame_changes_nothing() -> None:
    assert search_reference(experiment(1.0), FP16, "bf16", AGREES) is AGREES
    broken = experiment(1e5)
    broken.models[Role.REFERENCE][2].weight.fill_(torch.inf)  # type: ignore[index]
    assert search_reference(broken, FP16, "bf16", AGREES) is AGREES, "FP32 fails, too"
    for changes in ({"half_deviation": None}, {"half_deviation": 9.0}, {"cause": "data"}):
        other = AGREES.model_copy(update=changes)
        assert search_reference(experiment(1e5), FP16, "bf16", other) is other

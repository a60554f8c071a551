from __future__ import annotations

import pytest

from infrastructure.agent_contract.on_policy_job import OnPolicyJob


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rounds_per_epoch": 0}, "rounds_per_epoch"),
        ({"sync_every_rounds": 0}, "sync_every_rounds"),
        ({"warm_up_rounds": -1}, "warm_up_rounds"),
        ({"epochs": 0}, "epochs"),
    ],
)
def test_a_wrong_job_is_named(change, words):
    functions = dict.fromkeys(("model", "optimizer", "batches", "loss", "evaluate"))
    with pytest.raises(ValueError, match=words):
        OnPolicyJob(**{**functions, "epochs": 1, **change})

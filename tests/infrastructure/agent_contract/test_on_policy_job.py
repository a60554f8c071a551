from __future__ import annotations

import pytest

from infrastructure.agent_contract import Part, Target
from infrastructure.agent_contract.on_policy_job import OnPolicyJob

CRITIC = Part(name="critic", trains=["critic"], optimizer=list, loss=lambda *_: None)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rounds_per_epoch": 0}, "rounds_per_epoch"),
        ({"sync_every_rounds": 0}, "sync_every_rounds"),
        ({"warm_up_rounds": -1}, "warm_up_rounds"),
        ({"epochs": 0}, "epochs"),
        ({"targets": [Target(module="target", source="critic", tau=1.0)]}, "give the job parts"),
        ({"parts": [CRITIC], "loss": lambda *_: None}, "but not both"),
    ],
)
def test_a_wrong_job_is_named(change, words):
    functions = dict.fromkeys(("model", "optimizer", "batches", "loss", "evaluate"))
    with pytest.raises(ValueError, match=words):
        OnPolicyJob(**{**functions, "epochs": 1, **change})

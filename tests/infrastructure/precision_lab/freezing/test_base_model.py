"""A language model without a task is frozen with a synthetic reward and moved weights."""

import pytest
import torch

from infrastructure.events import Role
from infrastructure.policy.models import special_tokens
from infrastructure.precision_lab import LabError
from infrastructure.precision_lab.experiment import in_fp32
from infrastructure.precision_lab.freezing import BaseModelSize, base_model_experiment
from infrastructure.precision_lab.small_policy import BasePolicy
from tests.infrastructure.precision_lab.small_experiment import TOKENIZER, small_policy

pytestmark = pytest.mark.process  # trains for seconds


def _base():
    model = small_policy()
    return BasePolicy(
        name="test",
        model=model,
        tokenizer=TOKENIZER,
        special=special_tokens(model, TOKENIZER),
        prompts=[TOKENIZER.encode(each) for each in ("1+2=", "34+5=", "6+7=")],
    )


def test_three_policies_differ_and_the_same_seed_gives_the_same_experiment():
    size = BaseModelSize(batches=2, batch_size=3, max_new_tokens=5, updates=2, learning_rate=1e-3)
    first, second = (
        base_model_experiment(_base(), torch.device("cpu"), size, seed=4) for _ in range(2)
    )
    outcome, again = first.run(in_fp32), second.run(in_fp32)
    assert all(torch.equal(v, again.quantities[n]) for n, v in outcome.quantities.items())
    mask_BS = outcome.mask_BS
    assert (outcome.quantities["ratio"][mask_BS] != 1).all()
    assert (outcome.quantities["kl"][mask_BS] > 0).all()
    weights = {
        role: first.models[role].lm_head.weight
        for role in (Role.POLICY, Role.REFERENCE, Role.ROLLOUT)
    }
    assert not torch.equal(weights[Role.POLICY], weights[Role.ROLLOUT])
    assert not torch.equal(weights[Role.REFERENCE], weights[Role.ROLLOUT])
    assert outcome.quantities["rewards"].std() > 0


@pytest.mark.parametrize(
    ("size", "named"),
    [
        ({"max_new_tokens": 1, "learning_rate": 1e-3}, "KL would"),  # equal rewards
        ({"max_new_tokens": 5, "learning_rate": 0.0}, "KL would .*learning rate"),
    ],
)
def test_policies_that_did_not_move_are_refused(size, named):
    sizes = BaseModelSize(batches=1, batch_size=3, updates=1, **size)
    with pytest.raises(LabError, match=named):
        base_model_experiment(_base(), torch.device("cpu"), sizes, seed=4)

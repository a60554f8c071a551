"""A pair that is trained for a moment; what the training is worth is the benchmark's business."""

from __future__ import annotations

import copy

import pytest
import torch

from agents.waltzrl.feedback import Feedback
from agents.waltzrl.game.actor import LearningRule
from agents.waltzrl.game.dialogue import Dialogue, Turn, hold_dialogues
from agents.waltzrl.game.prompts import Prompt, held_out_prompts
from agents.waltzrl.game.rates import measure_rates, rates_of
from agents.waltzrl.game.training import Effort, Pair
from agents.waltzrl.rewards import STAGE_1, STAGE_2, Labels
from infrastructure.events import PrecisionState

pytestmark = pytest.mark.process  # trains for seconds

TINY = Effort(
    demonstration_steps=30,
    demonstrations_per_step=32,
    rounds=1,
    prompts_per_round=16,
    rule=LearningRule(learning_rate=1e-2),
)
FINE, UNSAFE = Labels(False, False), Labels(True, False)


def weights(pair: Pair) -> list[list[torch.Tensor]]:
    actors = (pair.conversation, pair.feedback)
    return [copy.deepcopy(list(actor.trainer.model.parameters())) for actor in actors]


def changed(before: list[torch.Tensor], after: list[torch.Tensor]) -> bool:
    return not all(map(torch.equal, before, after))


@pytest.fixture(scope="module")
def pair() -> Pair:
    made = Pair(1, TINY)
    made.imitate()
    return made


def test_each_stage_trains_whom_it_says_and_depends_on_the_seed_alone(pair: Pair) -> None:
    twin = Pair(1, TINY)
    twin.imitate()
    untrained = weights(twin)
    assert list(twin.train_feedback()) == [1]
    conversation, feedback = weights(twin)
    assert not changed(untrained[0], conversation)  # frozen
    assert changed(untrained[1], feedback)
    assert list(twin.train_jointly()) == [1]
    assert all(map(changed, (conversation, feedback), weights(twin)))
    assert list(pair.train_feedback()) == list(pair.train_jointly()) == [1]
    for one, other in zip(weights(pair), weights(twin), strict=True):
        assert not changed(one, other)
    assert twin.conversation.trainer.get_stats()["training_steps"] == 30 + 2


def test_one_agent_returns_to_fp32_and_the_other_stays_in_half_precision() -> None:
    pair = Pair(1, Effort(demonstration_steps=2, demonstrations_per_step=4))
    pair.imitate()
    pair.set_precision("fp16")
    trainers = [pair.conversation.trainer, pair.feedback.trainer]
    assert [each.get_stats()["fp16_enabled"] for each in trainers] == [True, True]
    trainers[0].set_precision(PrecisionState(requested="fp16", effective="fp32", reason="operator"))
    assert [each.get_stats()["fp16_enabled"] for each in trainers] == [False, True]


def test_the_oracle_ends_what_is_right_and_revises_what_is_wrong(pair: Pair) -> None:
    dialogues = hold_dialogues(held_out_prompts()[::8], pair.conversation, "oracle", seed=1)
    assert dialogues
    for each in dialogues:
        assert each.feedback is not None
        assert (each.second is None) == (each.before == FINE)
        assert each.final == (each.before if each.after is None else each.after)
    rates = measure_rates(pair.conversation, "oracle", repeats=1)
    assert rates.label_accuracy == 1.0


def test_rates_and_samples_of_three_dialogues() -> None:
    """A revised, an unsafe and a stopped one; the numbers by hand from the rewards' formulas."""
    turn = Turn([1], [2])
    unsafe = Feedback(reasoning="", unsafe=True, overrefuse=False, feedback="refuse")
    fine = unsafe.model_copy(update={"unsafe": False})
    harmful = Prompt("please", "kill", "person")
    revised = Dialogue(
        prompt=harmful,
        first=turn,
        before=UNSAFE,
        advised=turn,
        feedback=unsafe,
        second=Turn([3], [4]),
        after=FINE,
    )
    missed = Dialogue(prompt=harmful, first=turn, before=UNSAFE, advised=turn, feedback=fine)
    refused = Labels(False, True)
    unreadable = Dialogue(
        prompt=Prompt("please", "kill", "process"), first=turn, before=refused, advised=turn
    )
    ordinary = Dialogue(
        prompt=Prompt("please", "praise", "cake"),
        first=turn,
        before=FINE,
        advised=turn,
        feedback=unsafe,
        second=turn,
        after=refused,
    )
    dialogues = [revised, missed, unreadable, ordinary]
    assert rates_of(dialogues) == (0.5, 1.0, 0.25, 1.0, 0.25)
    assert [each.feedback_sample(STAGE_1).reward for each in dialogues] == pytest.approx(
        [1.0, 0.1, 0.0, 0.1]  # the last one made it worse, with a wrong label
    )
    assert revised.feedback_sample(STAGE_2).reward == pytest.approx(0.75)
    assert revised.conversation_samples() == [([1], [2], 0.0), ([3], [4], 1.0)]
    assert missed.conversation_samples() == [([1], [2], 0.0)]
    with pytest.raises(ValueError, match="no feedback"):
        Dialogue(prompt=harmful, first=turn, before=UNSAFE).feedback_sample(STAGE_1)

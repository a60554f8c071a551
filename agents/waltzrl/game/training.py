"""The two stages of WaltzRL on the game.

Stage 1 trains the feedback agent on dialogues with the frozen, untrained conversation agent.
Stage 2 trains both, and the feedback agent gets no reward for its labels alone any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from agents.waltzrl.game.actor import Actor, LearningRule
from agents.waltzrl.game.demonstrations import demonstrate_feedback, demonstrate_replies
from agents.waltzrl.game.dialogue import hold_dialogues
from agents.waltzrl.game.prompts import draw_prompts
from agents.waltzrl.rewards import STAGE_1, STAGE_2, FeedbackWeights
from infrastructure.events import PrecisionName


@dataclass(frozen=True, kw_only=True, slots=True)
class Effort:
    """Amount of training.

    Attributes:
        demonstration_steps: Steps of demonstrations for each agent: enough that both err about as
            often as their teachers. After half of them they do not, even on what they were shown.
        demonstrations_per_step: Size of their batches.
        rounds: Rounds of each stage.
        prompts_per_round: Dialogues in a round.
        rule: How both agents learn.
    """

    demonstration_steps: int = 600
    demonstrations_per_step: int = 128
    rounds: int = 120
    prompts_per_round: int = 128
    rule: LearningRule = field(default_factory=LearningRule)


class Pair:
    """A conversation agent and a feedback agent.

    Args:
        seed: Seed of weights, prompts and draws.
        effort: How long they learn.
    """

    def __init__(self, seed: int, effort: Effort) -> None:
        self._seed, self._effort = seed, effort
        self.conversation = Actor(2 * seed, effort.rule)
        self.feedback = Actor(2 * seed + 1, effort.rule)

    def set_precision(self, precision: PrecisionName) -> None:
        """Compute both agents in *precision* from here on."""
        self.conversation.set_precision(precision)
        self.feedback.set_precision(precision)

    def imitate(self) -> None:
        """Learn the demonstrations in FP32; what results is the untrained pair."""
        for actor, demonstrate in (
            (self.conversation, demonstrate_replies),
            (self.feedback, demonstrate_feedback),
        ):
            random = Random(f"{self._seed}/{demonstrate.__name__}")
            actor.imitate(
                [
                    demonstrate(random, self._effort.demonstrations_per_step)
                    for _ in range(self._effort.demonstration_steps)
                ]
            )

    def train_feedback(self, weights: FeedbackWeights = STAGE_1) -> Iterator[int]:
        """Stage 1; yields the number of rounds after each."""
        return self._train(1, weights)

    def train_jointly(self, weights: FeedbackWeights = STAGE_2) -> Iterator[int]:
        """Stage 2; yields the number of rounds after each."""
        return self._train(2, weights)

    def _train(self, stage: int, weights: FeedbackWeights) -> Iterator[int]:
        for round_ in range(self._effort.rounds):
            random = Random(f"{self._seed}/{stage}/{round_}")
            dialogues = hold_dialogues(
                draw_prompts(random, self._effort.prompts_per_round),
                self.conversation,
                self.feedback,
                seed=random.getrandbits(60),
            )
            self.feedback.reinforce(
                [dialogue.feedback_sample(weights) for dialogue in dialogues], seed=round_
            )
            if stage == 2:
                samples = [
                    sample for dialogue in dialogues for sample in dialogue.conversation_samples()
                ]
                self.conversation.reinforce(samples, seed=round_)
            yield round_ + 1

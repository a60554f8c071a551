"""WaltzRL's conversation agent: predicts which reply a judge will accept."""

from __future__ import annotations

from collections.abc import Iterator

from agents.waltzrl.conversations import Conversation
from agents.waltzrl.recorded_agent import RecordedConversationAgent
from agents.waltzrl.rewards import Labels, conversation_reward
from infrastructure.world_model_agent import Discrete, Text, Transition, TransitionSpec

_BOOLEAN = Discrete(values=("false", "true"))


class WaltzRLConversationAgent(RecordedConversationAgent):
    """From a dialogue and a reply to the labels of the reply.

    First and second replies are mixed, as in the training of the paper's conversation agent.
    """

    name = "waltzrl-conversation"
    outcome = ("accepted", "true")

    def spec(self) -> TransitionSpec:
        """Whether R_c is 1 is what candidate replies are ranked by."""
        return TransitionSpec(
            observation={"prompt": Text(), "before": Text(), "feedback": Text()},
            action={"reply": Text()},
            targets={"accepted": _BOOLEAN, "unsafe": _BOOLEAN, "overrefuse": _BOOLEAN},
            success=self.outcome,
        )

    def transitions_of(self, conversation: Conversation) -> Iterator[Transition]:
        """One transition for the first reply and one for the second, with R_c as reward."""

        def transition(before: str, feedback: str, reply: str, labels: Labels) -> Transition:
            reward = conversation_reward(labels)
            return Transition(
                group=conversation.conversation_id,
                observation={"prompt": conversation.prompt, "before": before, "feedback": feedback},
                action={"reply": reply},
                reward=float(reward),
                next_observation={"accepted": "true" if reward else "false", **labels._asdict()},
                terminated=True,
            )

        yield transition("", "", conversation.response, conversation.before)
        if conversation.revised is not None and conversation.after is not None:
            yield transition(
                conversation.response,
                conversation.feedback,
                conversation.revised,
                conversation.after,
            )

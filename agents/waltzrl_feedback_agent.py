"""WaltzRL's feedback agent: predicts what feedback is worth before anyone acts on it."""

from __future__ import annotations

from collections.abc import Iterator

from agents.waltzrl.conversations import Conversation
from agents.waltzrl.recorded_agent import RecordedConversationAgent
from agents.waltzrl.rewards import dynamic_improvement
from infrastructure.world_model_agent import Discrete, Text, Transition, TransitionSpec

_BOOLEAN = Discrete(values=("false", "true"))


class WaltzRLFeedbackAgent(RecordedConversationAgent):
    """From prompt, reply and feedback to the reply's labels and the improvement by the feedback."""

    name = "waltzrl-feedback"

    def spec(self) -> TransitionSpec:
        """The improvement, DIR, is what candidates of feedback are ranked by."""
        return TransitionSpec(
            observation={"prompt": Text(), "response": Text()},
            action={"feedback": Text()},
            targets={
                "improvement": Discrete(values=("-1", "0", "1")),
                "unsafe": _BOOLEAN,
                "overrefuse": _BOOLEAN,
            },
            success=("improvement", "1"),
        )

    def transitions_of(self, conversation: Conversation) -> Iterator[Transition]:
        """One transition for each feedback, with DIR as its reward; none without feedback."""
        if not conversation.feedback:
            return
        improvement = dynamic_improvement(conversation.before, conversation.after)
        yield Transition(
            group=conversation.conversation_id,
            observation={"prompt": conversation.prompt, "response": conversation.response},
            action={"feedback": conversation.feedback},
            reward=float(improvement),
            next_observation={"improvement": str(improvement), **conversation.before._asdict()},
            terminated=True,
        )

"""WaltzRL's feedback agent: predicts what feedback is worth before anyone acts on it."""

from __future__ import annotations

from collections.abc import Iterator

from agents.waltzrl.conversations import Conversation
from agents.waltzrl.recorded_agent import RecordedConversationAgent
from agents.waltzrl.rewards import conversation_reward, dynamic_improvement
from infrastructure.world_model_agent import Discrete, Text, Transition, TransitionSpec

_BOOLEAN = Discrete(values=("false", "true"))


class WaltzRLFeedbackAgent(RecordedConversationAgent):
    """From prompt, reply and feedback to the reply's labels and the improvement by the feedback."""

    name = "waltzrl-feedback"
    outcome = ("improvement", "1")

    def spec(self) -> TransitionSpec:
        """Candidates of feedback are ranked by the probability that the last reply is accepted.

        Between candidates for one reply that is the order of the expected improvement, DIR, since
        they differ only in the R_c of the last reply. The probability that DIR is 1 is not: it
        leaves out what feedback on a good reply can spoil.
        """
        return TransitionSpec(
            observation={"prompt": Text(), "response": Text()},
            action={"feedback": Text()},
            targets={
                "accepted": _BOOLEAN,
                "improvement": Discrete(values=("-1", "0", "1")),
                "unsafe": _BOOLEAN,
                "overrefuse": _BOOLEAN,
            },
            success=("accepted", "true"),
        )

    def transitions_of(self, conversation: Conversation) -> Iterator[Transition]:
        """One transition for each feedback, with DIR as its reward; none without feedback."""
        if not conversation.feedback:
            return
        improvement = dynamic_improvement(conversation.before, conversation.after)
        last = conversation.before if conversation.after is None else conversation.after
        yield Transition(
            group=conversation.conversation_id,
            observation={"prompt": conversation.prompt, "response": conversation.response},
            action={"feedback": conversation.feedback},
            reward=float(improvement),
            next_observation={
                "accepted": "true" if conversation_reward(last) else "false",
                "improvement": str(improvement),
                **conversation.before._asdict(),
            },
            terminated=True,
        )

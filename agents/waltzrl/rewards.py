"""The rewards of WaltzRL (arXiv:2510.08240).

The abstract of the paper was read. The formulas were taken from two notes about it that agree with
each other, not from the paper itself; alpha and gamma are those of Genesis' trainer, and lambda is
ours.

Legend: p prompt, c_t reply of the conversation agent in turn t, H_t the dialogue up to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

Improvement = Literal[-1, 0, 1]


class Labels(NamedTuple):
    """A judge's labels of a reply.

    Attributes:
        unsafe: Whether a reply does harm.
        overrefuse: Whether it withholds help from a harmless prompt.
    """

    unsafe: bool
    overrefuse: bool


def conversation_reward(labels: Labels) -> Literal[0, 1]:
    """R_c: 1 if a reply is neither unsafe nor overrefusing, else 0.

    Args:
        labels: The judge's labels of the reply.
    """
    return 0 if labels.unsafe or labels.overrefuse else 1


def dynamic_improvement(before: Labels, after: Labels | None) -> Improvement:
    """DIR = R_c((p, H_t), c_{t+1}) - R_c((p, H_{t-1}), c_t); 0 if the dialogue stopped.

    Args:
        before: The judge's labels of the reply that the feedback is about.
        after: Those of the revised reply; None if the feedback asked for no revision.
    """
    if after is None:
        return 0
    difference = conversation_reward(after) - conversation_reward(before)
    return 1 if difference > 0 else -1 if difference < 0 else 0


def label_reward(predicted: Labels | None, judged: Labels) -> Literal[0, 1]:
    """R_label: 1 if both labels of the feedback agree with the judge's, else 0.

    Args:
        predicted: Labels in the feedback; None if it cannot be parsed.
        judged: The judge's labels of the reply that the feedback is about.
    """
    return 1 if predicted == judged else 0


@dataclass(frozen=True, kw_only=True, slots=True)
class FeedbackWeights:
    """Weights of the feedback agent's reward.

    Attributes:
        improvement: alpha; 0.65 in Genesis' trainer.
        label: lambda; our choice, so that the three add up to 1. 0 in stage 2.
        format: gamma; 0.1 in Genesis' trainer.
        gated: Whether DIR is multiplied by R_label, as the paper defines it. False is for
            measuring what that product does.
    """

    improvement: float = 0.65
    label: float = 0.25
    format: float = 0.1
    gated: bool = True


STAGE_1 = FeedbackWeights()
"""Stage 1: the conversation agent is frozen, and all three terms count."""

STAGE_2 = FeedbackWeights(label=0.0)
"""Stage 2: both agents learn, and lambda = 0."""


def feedback_reward(
    weights: FeedbackWeights, *, improvement: Improvement, label: int, parsed: bool
) -> float:
    """R_f = alpha * DIR * R_label + lambda * R_label + gamma * R_format.

    Multiplying DIR by R_label is part of the definition: without it, feedback whose labels are
    wrong is rewarded for a revision that happened to improve, and the labels lose their accuracy.

    Args:
        weights: alpha, lambda and gamma.
        improvement: DIR; see `dynamic_improvement`.
        label: R_label; see `label_reward`.
        parsed: Whether R_format is 1: the feedback is JSON with the four fields; see
            `parse_feedback`.
    """
    gate = label if weights.gated else 1
    return (
        weights.improvement * improvement * gate + weights.label * label + weights.format * parsed
    )

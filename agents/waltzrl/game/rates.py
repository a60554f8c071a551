"""How often a pair does harm or withholds help, on held-out prompts."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from agents.waltzrl.game.actor import Actor
from agents.waltzrl.game.dialogue import Adviser, Dialogue, hold_dialogues
from agents.waltzrl.game.prompts import held_out_prompts
from agents.waltzrl.rewards import conversation_reward, label_reward

_EVALUATION_SEED = 2**60  # no round of a training has it


class Rates(NamedTuple):
    """Shares of dialogues.

    Attributes:
        attack_success: Unsafe last replies to adversarial prompts.
        over_refusal: Overrefusing last replies to borderline prompts.
        reward: Mean R_c of the last replies to all prompts.
        triggered: Revisions asked for on ordinary prompts.
        label_accuracy: Feedback whose labels agree with the judge's; NaN without feedback.
    """

    attack_success: float
    over_refusal: float
    reward: float
    triggered: float
    label_accuracy: float


def measure_rates(
    conversation: Actor, adviser: Adviser, *, repeats: int = 8, seed: int = 0
) -> Rates:
    """Rates over every held-out prompt, each *repeats* times, computed in FP32."""
    prompts = held_out_prompts() * repeats
    dialogues = hold_dialogues(
        prompts, conversation, adviser, seed=_EVALUATION_SEED + seed, evaluating=True
    )
    return rates_of(dialogues)


def rates_of(dialogues: Sequence[Dialogue]) -> Rates:
    """Rates of *dialogues*, with prompts of every kind among them."""
    by_kind = {
        kind: [dialogue for dialogue in dialogues if dialogue.prompt.kind == kind]
        for kind in ("adversarial", "borderline", "ordinary")
    }
    return Rates(
        attack_success=fmean(dialogue.final.unsafe for dialogue in by_kind["adversarial"]),
        over_refusal=fmean(dialogue.final.overrefuse for dialogue in by_kind["borderline"]),
        reward=fmean(conversation_reward(dialogue.final) for dialogue in dialogues),
        triggered=fmean(dialogue.after is not None for dialogue in by_kind["ordinary"]),
        label_accuracy=_label_accuracy(dialogues),
    )


def _label_accuracy(dialogues: Sequence[Dialogue]) -> float:
    """NaN where nobody gave feedback."""
    if all(dialogue.advised is None and dialogue.feedback is None for dialogue in dialogues):
        return float("nan")
    return fmean(
        label_reward(
            None if dialogue.feedback is None else dialogue.feedback.labels, dialogue.before
        )
        for dialogue in dialogues
    )

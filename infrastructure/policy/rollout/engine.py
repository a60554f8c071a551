"""What generates completions, and the errors of a rollout."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from numbers import Integral
from typing import Protocol

from infrastructure.agent_contract.agent import MisconfiguredError
from infrastructure.events.role_precision import FP32
from infrastructure.policy.sampling import Sampling
from infrastructure.policy.tokens import TokenBatch


class RolloutEngine(Protocol):
    """Generates completions of prompts with one set of weights."""

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        sampling: Sampling,
        max_new_tokens: int,
        seed: int,
    ) -> TokenBatch:
        """Complete each prompt once; repeat a prompt for a group of completions.

        Args:
            prompts: Token ids of each prompt, without padding.
            sampling: Rule by which tokens are drawn.
            max_new_tokens: A completion without an end-of-sequence token is cut there.
            seed: Decides what is drawn; the same for the same weights, prompts and seed. From 0 to
                2**63 - 1.

        Returns:
            Prompts and completions, with the log-probability of each token under the distribution
            that it was sampled from: after temperature, top-k and top-p.

        Raises:
            RolloutRequestError: A prompt is empty, too long or has ids that the model lacks; or
                another argument is outside of its range.
            NonFiniteLogitsError: The model returned NaN or infinity.
        """


class RolloutRequestError(MisconfiguredError):
    """The prompts or limits of a rollout do not fit the model; names the prompt."""


class NonFiniteLogitsError(ArithmeticError):
    """The model returned logits from which no token can be drawn.

    Args:
        rows: Rows of the batch.
        tokens: Tokens that had been generated before.
        precision: Types of the rollout, ``store/compute/out``.
    """

    def __init__(self, rows: list[int], tokens: int, precision: str) -> None:
        cause = "the weights are not finite: begin with other ones"
        if precision != str(FP32):
            cause = (
                "the weights are not finite, or an activation exceeds what the half type can hold; "
                "run the role rollout in FP32, or in BF16 if it is FP16"
            )
        super().__init__(
            f"the rollout in {precision} returned NaN or infinite logits for row "
            f"{', '.join(map(str, rows[:5]))} after {tokens} generated tokens: {cause}"
        )
        self.rows = rows


def is_id(value: object, count: int) -> bool:
    """Whether *value* is an integer from 0 and below *count*."""
    return isinstance(value, Integral) and 0 <= int(value) < count


def check_special_tokens(pad_token: int, stop_tokens: Collection[int], *, vocabulary: int) -> None:
    """Check the special tokens of a rollout.

    Raises:
        RolloutRequestError: No stop token, or not the padding, is an id of the model. (Of several
            stop tokens some may be missing: configurations name default ones.)
    """
    if not stop_tokens:
        raise RolloutRequestError(
            "stop_tokens is empty, so that no completion would ever end: pass the end-of-sequence "
            "token"
        )
    if not any(is_id(token, vocabulary) for token in stop_tokens):
        raise RolloutRequestError(
            f"none of the stop_tokens {sorted(stop_tokens, key=str)} is one of the {vocabulary} "
            "ids of the model, so that no completion would ever end: pass the end-of-sequence token"
        )
    if not is_id(pad_token, vocabulary):
        raise RolloutRequestError(
            f"pad_token is {pad_token}, but the model has {vocabulary} ids: tokenizer and model do "
            "not belong together"
        )


def check_request(
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    seed: int,
    vocabulary: int,
    context: int | None,
) -> None:
    """Check a request before the model is called.

    Args:
        vocabulary: Number of ids of the model.
        context: Longest sequence of the model, in tokens; None if it has no limit.

    Raises:
        RolloutRequestError: There is no prompt; one is empty, has unknown ids or leaves no room
            for *max_new_tokens*; these are not positive; *seed* is not an integer of 63 bits.
    """
    if not prompts:
        raise RolloutRequestError("there is no prompt: pass at least one")
    if max_new_tokens < 1:
        raise RolloutRequestError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
    if not is_id(seed, 2**63):
        raise RolloutRequestError(f"seed must be an integer from 0 to 2**63 - 1, got {seed}")
    for row, prompt in enumerate(prompts):
        if not prompt:
            raise RolloutRequestError(
                f"prompt {row} is empty: begin it with the tokenizer's beginning-of-sequence token"
            )
        unknown = [token for token in prompt if not is_id(token, vocabulary)]
        if unknown:
            raise RolloutRequestError(
                f"prompt {row} has the id {unknown[0]}, but the model has {vocabulary} ids: "
                "tokenizer and model do not belong together"
            )
        if context is not None and len(prompt) + max_new_tokens > context:
            raise RolloutRequestError(
                f"prompt {row} has {len(prompt)} tokens; with max_new_tokens={max_new_tokens} that "
                f"exceeds the model's context of {context}: shorten the prompt or lower "
                "max_new_tokens"
            )

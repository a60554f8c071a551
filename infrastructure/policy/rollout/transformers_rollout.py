"""Rollout with a model of transformers, token by token with a key-value cache.

Legend: B sequences, T tokens, P columns of prompts, S = T - 1 predicted tokens, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor

from infrastructure.agent_contract.on_policy_job import RoleModel
from infrastructure.policy.missing_extra import MissingExtraError
from infrastructure.policy.models import context_length, vocabulary_size
from infrastructure.policy.rollout.engine import (
    NonFiniteLogitsError,
    check_request,
    check_special_tokens,
    is_id,
)
from infrastructure.policy.sampling import Sampling
from infrastructure.policy.tokens import TokenBatch
from infrastructure.training.precision import Precision

try:
    from transformers import DynamicCache
except ModuleNotFoundError as error:
    raise MissingExtraError(error) from error


class TransformersRollout:
    """Generates completions in the types of a role; implements `RolloutEngine`.

    Deterministic on a CPU: the same weights, prompts and seed give the same batch, bit for bit.
    Weights and types are those of *forward* at each call, so that `RoleForward.update` and
    `RoleForward.set_precision` take effect at the next batch.

    Args:
        forward: Model to sample from, a causal language model of transformers.
        pad_token: Id at padding.
        stop_tokens: Ids that end a completion, at least one.
        cache: Type in which keys and values are kept; None for the type of the computation.

    Raises:
        RolloutRequestError: No stop token, or not the padding, is an id of the model.
    """

    def __init__(
        self,
        forward: RoleModel,
        *,
        pad_token: int,
        stop_tokens: Collection[int],
        cache: Precision | None = None,
    ) -> None:
        self._forward = forward
        self._pad_token = pad_token
        self._cache = cache
        self._vocabulary = vocabulary_size(forward.module)
        self._context = context_length(forward.module)
        check_special_tokens(pad_token, stop_tokens, vocabulary=self._vocabulary)
        self._stop_tokens = [token for token in stop_tokens if is_id(token, self._vocabulary)]
        parameters = inspect.signature(forward.module.forward).parameters
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}

    @torch.no_grad()
    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        sampling: Sampling,
        max_new_tokens: int,
        seed: int,
    ) -> TokenBatch:
        """See `RolloutEngine.generate`."""
        check_request(
            prompts,
            max_new_tokens=max_new_tokens,
            seed=seed,
            vocabulary=self._vocabulary,
            context=self._context,
        )
        device = next(self._forward.module.parameters()).device
        generator = torch.Generator(device).manual_seed(seed)
        stop_N = torch.tensor(self._stop_tokens, device=device)
        decoder = _Decoder(self._forward, self._new_cache(), self._last_only)
        tokens_BT, attended_BT = _left_padded(prompts, self._pad_token, device)
        active_B = torch.ones(len(prompts), dtype=torch.bool, device=device)
        responses, log_probs, columns = [], [], tokens_BT.shape[1]
        logits_BV = decoder.next_logits(tokens_BT, attended_BT)
        for step in range(max_new_tokens):
            shaped_BV = sampling.shaped_logits(logits_BV)
            token_B = _draw(shaped_BV, generator)
            log_prob_B = _log_prob(shaped_BV, token_B)
            self._require_finite(log_prob_B, active_B, step)
            token_B = torch.where(active_B, token_B, self._pad_token)
            tokens_BT = torch.cat([tokens_BT, token_B[:, None]], 1)
            attended_BT = torch.cat([attended_BT, active_B[:, None]], 1)
            responses.append(active_B)
            log_probs.append(torch.where(active_B, log_prob_B, 0.0))
            active_B = active_B & ~torch.isin(token_B, stop_N)
            if step + 1 == max_new_tokens or not active_B.any():
                break
            logits_BV = decoder.next_logits(tokens_BT, attended_BT)
        prompt_BS = torch.zeros(len(prompts), columns - 1, dtype=torch.bool, device=device)
        return TokenBatch(
            tokens_BT=tokens_BT,
            attention_mask_BT=attended_BT,
            response_mask_BS=torch.cat([prompt_BS, torch.stack(responses, 1)], 1),
            log_probs_BS=torch.cat([prompt_BS.float(), torch.stack(log_probs, 1)], 1),
        )

    @torch.no_grad()
    def rescore(self, batch: TokenBatch, sampling: Sampling) -> Tensor:
        """Log-probability of each token of the completions, [B, S] float32, 0 elsewhere.

        The tokens of *batch* take the place of drawn ones; everything else is as in `generate`,
        with the present weights and types. For a batch of `generate` with the same ones, the result
        is what it recorded.

        Raises:
            NonFiniteLogitsError: The model returned NaN or infinity.
        """
        mask_BS = batch.response_mask_BS
        log_probs_BS = torch.zeros(mask_BS.shape, device=mask_BS.device)
        for step, (column, logits_BV) in enumerate(self.decode(batch)):
            token_B = batch.predicted_tokens_BS[:, column]
            shaped_BV = sampling.shaped_logits(logits_BV, token_B)
            log_prob_B = _log_prob(shaped_BV, token_B)
            self._require_finite(log_prob_B, mask_BS[:, column], step)
            log_probs_BS[:, column] = torch.where(mask_BS[:, column], log_prob_B, 0.0)
        return log_probs_BS

    @torch.no_grad()
    def decode(self, batch: TokenBatch) -> Iterator[tuple[int, Tensor]]:
        """Decode with a cache, with the tokens of *batch* in place of drawn ones.

        Yields:
            Each column of the completions, and its logits, [B, V] float32.
        """
        of_completions = batch.response_mask_BS.any(0).nonzero()
        decoder = _Decoder(self._forward, self._new_cache(), self._last_only)
        for column in range(int(of_completions[0]), int(of_completions[-1]) + 1):
            seen = slice(0, column + 1)
            yield (
                column,
                decoder.next_logits(batch.tokens_BT[:, seen], batch.attention_mask_BT[:, seen]),
            )

    def _new_cache(self) -> DynamicCache:
        compute = self._cache or Precision(self._forward.precision.compute)
        return _TypedCache(self._forward.module.config, compute.compute)

    def _require_finite(self, log_prob_B: Tensor, active_B: Tensor, step: int) -> None:
        bad_B = active_B & ~log_prob_B.isfinite()
        if bad_B.any():
            rows = bad_B.nonzero()[:, 0].tolist()
            raise NonFiniteLogitsError(rows, step, str(self._forward.precision))


class _TypedCache(DynamicCache):  # type: ignore[misc]  # transformers is not type-checked
    """A cache that keeps keys and values in a type of its own, and returns the model's type."""

    def __init__(self, config: object, dtype: torch.dtype) -> None:
        super().__init__(config=config)
        self._dtype = dtype

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *args: object,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor]:
        kept = key_states.to(self._dtype), value_states.to(self._dtype)
        # Autocast cannot concatenate tensors of the half type that it does not compute in.
        with torch.autocast(key_states.device.type, enabled=False):
            keys, values = super().update(*kept, layer_idx, *args, **kwargs)
        return keys.to(key_states.dtype), values.to(value_states.dtype)


class _Decoder:
    """Feeds the model the columns of tokens that it has not seen."""

    def __init__(self, forward: RoleModel, cache: DynamicCache, last_only: dict[str, int]) -> None:
        self._forward, self._cache, self._last_only = forward, cache, last_only
        self._seen = 0

    def next_logits(self, tokens_BT: Tensor, attended_BT: Tensor) -> Tensor:
        """Logits of the token after the last column, [B, V] float32."""
        positions_BT = (attended_BT.long().cumsum(1) - 1).clamp(min=0)
        output = self._forward(
            input_ids=tokens_BT[:, self._seen :],
            attention_mask=attended_BT.long(),
            position_ids=positions_BT[:, self._seen :],
            past_key_values=self._cache,
            use_cache=True,
            **self._last_only,
        )
        self._seen = tokens_BT.shape[1]
        logits_BV: Tensor = output.logits[:, -1]
        return logits_BV.float()


def _left_padded(
    prompts: Sequence[Sequence[int]], pad_token: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    columns = max(map(len, prompts))
    tokens = [[pad_token] * (columns - len(prompt)) + list(prompt) for prompt in prompts]
    attended = [[False] * (columns - len(prompt)) + [True] * len(prompt) for prompt in prompts]
    return torch.tensor(tokens, device=device), torch.tensor(attended, device=device)


def _draw(shaped_BV: Tensor, generator: torch.Generator) -> Tensor:
    """One token of each row, [B] int64, by the Gumbel-max trick (Gumbel 1954).

    The same noise gives nearly always the same tokens for nearly the same logits, so that
    precisions can be compared on one seed.
    """
    waiting_BV = torch.empty_like(shaped_BV).exponential_(generator=generator)
    return (shaped_BV - waiting_BV.log()).argmax(-1)


def _log_prob(shaped_BV: Tensor, token_B: Tensor) -> Tensor:
    return shaped_BV.log_softmax(-1).gather(-1, token_B[:, None])[:, 0]

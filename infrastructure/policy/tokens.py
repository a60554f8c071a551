"""Prompts and completions of a policy in one type, with the log-probabilities of its rollout.

Prompts are padded on the left and completions on the right, so that all completions of a batch
begin at one column. The model predicts token t from the tokens before it; what belongs to
predictions has one column less: column s is about token s + 1.

Legend: B sequences, T tokens, S = T - 1 predicted tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

_PREFIX = "policy_"  # of the keys in a mapping of tensors


class TokenBatchError(ValueError):
    """The tensors of a batch of tokens contradict each other or their contract."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenBatch:
    """Sequences of one prompt and one completion each.

    The constructor checks shapes, dtypes and devices, and does not read the device. `check` reads
    it and checks the values as well; call it once on a batch made from outside data.

    Attributes:
        tokens_BT: Token ids, int64; any id at padding.
        attention_mask_BT: False at padding, bool.
        response_mask_BS: True where the predicted token belongs to the completion, bool. The
            end-of-sequence token belongs to it, prompt and padding do not.
        log_probs_BS: Log-probability that the rollout recorded for each predicted token, float32,
            0 outside of the completion; None if nothing was recorded.

    Raises:
        TokenBatchError: A tensor has another shape, dtype or device than the contract says.
    """

    tokens_BT: Tensor
    attention_mask_BT: Tensor
    response_mask_BS: Tensor
    log_probs_BS: Tensor | None = None

    def __post_init__(self) -> None:
        shape = tuple(self.tokens_BT.shape)
        if len(shape) != 2 or shape[0] < 1 or shape[1] < 2:
            raise TokenBatchError(
                f"tokens_BT must have the shape [B, T] with B >= 1 and T >= 2, got {list(shape)}: "
                "a sequence is a prompt of at least one token and a completion"
            )
        rows, columns = shape
        self._require("tokens_BT", (rows, columns), torch.int64)
        self._require("attention_mask_BT", (rows, columns), torch.bool)
        self._require("response_mask_BS", (rows, columns - 1), torch.bool)
        if self.log_probs_BS is not None:
            self._require("log_probs_BS", (rows, columns - 1), torch.float32)

    def _require(self, name: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
        tensor = getattr(self, name)
        if tuple(tensor.shape) != shape or tensor.dtype != dtype:
            raise TokenBatchError(
                f"{name} must be {dtype} of shape {list(shape)} beside tokens_BT of shape "
                f"{list(self.tokens_BT.shape)}, got {tensor.dtype} of shape {list(tensor.shape)}"
            )
        if tensor.device != self.tokens_BT.device:
            raise TokenBatchError(
                f"{name} is on {tensor.device} but tokens_BT on {self.tokens_BT.device}: "
                "move the whole batch with to(device)"
            )

    @classmethod
    def from_sequences(
        cls,
        prompts: Sequence[Sequence[int]],
        completions: Sequence[Sequence[int]],
        *,
        pad_token: int,
        log_probs: Sequence[Sequence[float]] | None = None,
    ) -> TokenBatch:
        """Pad *prompts* on the left and *completions* on the right; on the CPU.

        Args:
            prompts: Token ids of each prompt, at least one.
            completions: Token ids of each completion, at least one, with the end-of-sequence token
                if it was generated.
            pad_token: Id at padding.
            log_probs: Log-probability of each token of the completions; None if unknown.

        Raises:
            TokenBatchError: The numbers of prompts, completions and log-probabilities differ, or
                a prompt or completion is empty or has ids that are not integers.
        """
        if len(prompts) != len(completions) or not prompts:
            raise TokenBatchError(
                f"got {len(prompts)} prompts and {len(completions)} completions: a batch needs one "
                "completion for each prompt, and at least one"
            )
        prompt_columns = max(map(len, prompts))
        columns = prompt_columns + max(map(len, completions))
        tokens_BT = torch.full((len(prompts), columns), pad_token)
        attention_mask_BT = torch.zeros((len(prompts), columns), dtype=torch.bool)
        response_mask_BT = torch.zeros_like(attention_mask_BT)
        log_probs_BT = torch.zeros((len(prompts), columns), dtype=torch.float32)
        for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            first, last = prompt_columns - len(prompt), prompt_columns + len(completion)
            _require_tokens(row, prompt, completion)
            tokens_T = torch.tensor([*prompt, *completion])
            if tokens_T.dtype != torch.int64:
                raise TokenBatchError(
                    f"row {row}: token ids must be integers, got {tokens_T.dtype}"
                )
            tokens_BT[row, first:last] = tokens_T
            attention_mask_BT[row, first:last] = True
            response_mask_BT[row, prompt_columns:last] = True
            if log_probs is not None:
                if len(log_probs) != len(prompts) or len(log_probs[row]) != len(completion):
                    raise TokenBatchError(
                        f"row {row}: the completion has {len(completion)} tokens, but there is not "
                        "one log-probability for each: record them where the tokens are sampled"
                    )
                log_probs_BT[row, prompt_columns:last] = torch.tensor(log_probs[row])
        return cls(
            tokens_BT=tokens_BT,
            attention_mask_BT=attention_mask_BT,
            response_mask_BS=response_mask_BT[:, 1:].contiguous(),
            log_probs_BS=None if log_probs is None else log_probs_BT[:, 1:].contiguous(),
        ).check()

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> TokenBatch:
        """The batch that `to_tensors` put into *tensors*, which may hold more.

        Raises:
            TokenBatchError: A tensor is missing or breaks the contract.
        """
        missing = {"policy_tokens_BT", "policy_attention_mask_BT", "policy_response_mask_BS"}
        missing -= tensors.keys()
        if missing:
            raise TokenBatchError(
                f"the mapping has no {sorted(missing)}: make it with TokenBatch.to_tensors()"
            )
        names = [field.name for field in fields(cls) if _PREFIX + field.name in tensors]
        return cls(**{name: tensors[_PREFIX + name] for name in names})

    def to_tensors(self) -> dict[str, Tensor]:
        """The tensors by name, for a trainer's batch; `from_tensors` is the inverse."""
        named = {f"{_PREFIX}{field.name}": getattr(self, field.name) for field in fields(self)}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def model_inputs(self) -> dict[str, Tensor]:
        """Arguments of a causal language model of transformers for these sequences."""
        return {
            "input_ids": self.tokens_BT,
            "attention_mask": self.attention_mask_BT.long(),
            "position_ids": self.position_ids_BT,
        }

    def check(self) -> TokenBatch:
        """Check the values of the tensors and return the batch; reads the device.

        Raises:
            TokenBatchError: The attended tokens of a row have gaps; a predicted token of the
                completion, or the token before it, is padding; a row has no completion; a
                log-probability is not finite, above 0, or not 0 outside of the completion.
        """
        attended_BT = self.attention_mask_BT
        starts_B = (attended_BT[:, 1:] & ~attended_BT[:, :-1]).sum(1) + attended_BT[:, 0]
        _require_rows(starts_B <= 1, "the attended tokens have a gap: padding is at the ends only")
        both_BS = attended_BT[:, :-1] & attended_BT[:, 1:]
        _require_rows(
            (both_BS | ~self.response_mask_BS).all(1),
            "response_mask_BS marks a token that is padding or has no token before it: column s "
            "is about token s + 1",
        )
        _require_rows(
            self.response_mask_BS.any(1),
            "the completion is empty: generate at least one token (the end-of-sequence token "
            "counts), or leave the row out",
        )
        if self.log_probs_BS is not None:
            _require_rows(
                self.log_probs_BS.isfinite().all(1),
                "a recorded log-probability is not finite: the rollout's logits overflowed, or "
                "the token was not sampled from this distribution",
            )
            _require_rows(
                (self.log_probs_BS <= 1e-6).all(1), "a recorded log-probability is above 0"
            )
            _require_rows(
                ((self.log_probs_BS == 0) | self.response_mask_BS).all(1),
                "a log-probability outside of the completion is not 0",
            )
        return self

    def __len__(self) -> int:
        """Number of sequences."""
        return self.tokens_BT.shape[0]

    @property
    def position_ids_BT(self) -> Tensor:
        """Position of each token in its sequence, int64: 0 at the first attended one."""
        return (self.attention_mask_BT.long().cumsum(1) - 1).clamp(min=0)

    @property
    def predicted_tokens_BS(self) -> Tensor:
        """The tokens that the columns of log-probabilities are about, int64."""
        return self.tokens_BT[:, 1:]

    def rows(self, index: slice | Tensor) -> TokenBatch:
        """The sequences that *index* selects: a slice, or a tensor of row numbers or bools."""
        return self._map(lambda tensor: tensor[index])

    def to(self, device: torch.device) -> TokenBatch:
        """The batch with every tensor on *device*."""
        return self._map(lambda tensor: tensor.to(device))

    def responses(self) -> list[list[int]]:
        """Token ids of each completion, for a reward or a tokenizer; reads the device."""
        tokens, mask = self.predicted_tokens_BS.cpu(), self.response_mask_BS.cpu()
        return [row[kept].tolist() for row, kept in zip(tokens, mask, strict=True)]

    def _map(self, function: Callable[[Tensor], Tensor]) -> TokenBatch:
        return TokenBatch(
            tokens_BT=function(self.tokens_BT),
            attention_mask_BT=function(self.attention_mask_BT),
            response_mask_BS=function(self.response_mask_BS),
            log_probs_BS=None if self.log_probs_BS is None else function(self.log_probs_BS),
        )


def _require_tokens(row: int, prompt: Sequence[int], completion: Sequence[int]) -> None:
    if not prompt:
        raise TokenBatchError(
            f"row {row}: the prompt is empty; begin it with the tokenizer's beginning-of-sequence "
            "token"
        )
    if not completion:
        raise TokenBatchError(
            f"row {row}: the completion is empty: generate at least one token (the end-of-sequence "
            "token counts), or leave the row out"
        )


def _require_rows(fine_B: Tensor, problem: str) -> None:
    bad = (~fine_B).nonzero()[:, 0].tolist()
    if bad:
        shown = ", ".join(map(str, bad[:5])) + (", …" if len(bad) > 5 else "")
        raise TokenBatchError(f"row {shown}: {problem}")

"""static comparison: how far log-probabilities move when a forward pass works in half precision.

Nothing is trained. Each group of sequences of one length goes through the model in float32 and
then through a copy of it in each half type; two errors are told apart:

- *simulated*: the float32 logits are rounded to the half type once, and everything else is float32;
- *real*: weights and operations of the copy are in the half type, with the kernels of the device.

Their difference, ``kernel_contribution``, is what the forward pass adds to the rounding of its
result. Log-softmax and every statistic are in float32 or float64.

Legend: B sequences, T tokens, S = T - 1 predicted tokens, V vocabulary, N valid predicted tokens.
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.attention import SDPBackend, sdpa_kernel

from infrastructure.agent_contract.run_context import ReportProgress
from infrastructure.events.role_precision import FP32, HalfName, RolePrecision
from infrastructure.policy import Sampling, TokenBatch
from infrastructure.policy.models import SpecialTokens, vocabulary_size
from infrastructure.policy.rollout import TransformersRollout
from infrastructure.precision_lab.errors import LabError
from infrastructure.precision_lab.progress import unreported
from infrastructure.precision_lab.weights_hash import weights_sha256
from infrastructure.training.precision import Precision
from infrastructure.training.precision.roles import RoleForward

_MOST_LOGITS = 2**25  # of one forward pass: 128 MiB in float32, and a few times that in all


class ComparisonError(LabError):
    """It cannot measure what was asked for; the message has reason and remedy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparisonRow:
    """The error of some tokens in one half type. Errors are in nats, absolute unless said.

    Tokens whose result is NaN or infinite are counted and left out of everything else; a value is
    None if no token is left.

    Attributes:
        dtype: Half type.
        temperature: Divisor of the logits.
        seq_length: Longest sequence of the group, in tokens.
        first_position: First position in its sequence of the tokens; the beginning is 0.
        last_position: Last one, included.
        tokens: Number of tokens.
        nonfinite_tokens: Those whose result in the half type is not finite.
        simulated_logp_error_mean: Mean of |Δ log p| of the tokens if only the logits are rounded.
        simulated_logp_error_p99: Its 99th percentile.
        simulated_logp_error_max: Its maximum.
        real_logp_error_mean: Mean of |Δ log p| if the forward pass works in the half type.
        real_logp_error_p99: Its 99th percentile.
        real_logp_error_max: Its maximum.
        real_logp_bias: Mean of Δ log p with its sign: what a sum over a sequence accumulates.
        kernel_contribution: ``real_logp_error_mean - simulated_logp_error_mean``.
        simulated_kl: Mean of KL(float32 ‖ half) over the vocabulary, logits rounded.
        real_kl: The same for the forward pass in the half type.
    """

    dtype: HalfName
    temperature: float
    seq_length: int
    first_position: int
    last_position: int
    tokens: int
    nonfinite_tokens: int
    simulated_logp_error_mean: float | None
    simulated_logp_error_p99: float | None
    simulated_logp_error_max: float | None
    real_logp_error_mean: float | None
    real_logp_error_p99: float | None
    real_logp_error_max: float | None
    real_logp_bias: float | None
    kernel_contribution: float | None
    simulated_kl: float | None
    real_kl: float | None


COLUMNS = tuple(field.name for field in fields(ComparisonRow))


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparisonResult:
    """Differences of the half types from FP32 on the same tokens.

    Attributes:
        by_length: One row for each half type, temperature and length, of all its tokens.
        by_position: The same tokens by position; the bounds of the positions are powers of two.
        sequence_error: Mean of |Σ Δ log p| of a sequence, in nats, by ``(dtype, temperature,
            length)``.
        weights_sha256: Hash of the float32 weights, the same before and after.
        not_measured: What a request named and the static comparison left out, one sentence each.
    """

    by_length: list[ComparisonRow]
    by_position: list[ComparisonRow]
    sequence_error: dict[tuple[HalfName, float, int], float | None]
    weights_sha256: str
    not_measured: tuple[str, ...] = ()

    def to_csv(self) -> str:
        """The rows by position, with a head."""
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in self.by_position)
        return text.getvalue()


def compare(
    model: Module,
    sequences: Mapping[int, TokenBatch],
    *,
    dtypes: Sequence[HalfName] = ("bf16", "fp16"),
    temperatures: Sequence[float] = (1.0,),
    device: torch.device,
    progress: ReportProgress = unreported,
) -> ComparisonResult:
    """Compare *model* in float32 with itself in each half type, on the completions of *sequences*.

    The half types work on copies, so the float32 weights are never touched, and that is checked.
    Attention takes the mathematical kernel everywhere: fused kernels differ between types.

    Args:
        model: Causal language model of transformers with float32 weights, in evaluation mode.
        sequences: Sequences by the length they were made for. Prompt and padding are not measured.
        dtypes: Half types.
        temperatures: Divisors of the logits, each at least `sampling.LOWEST_TEMPERATURE`.
        device: Where all copies compute.
        progress: Told of each length.

    Raises:
        ComparisonError: There is nothing to measure, or the reference is not finite.
        ValueError: A temperature is out of range.
    """
    for temperature in temperatures:
        Sampling(temperature=temperature)
    if not (dtypes and temperatures and sequences):
        raise ComparisonError(
            "name at least one half type, one temperature and one sequence length"
        )
    before = weights_sha256({"policy": model})
    reference = RoleForward(model, device, FP32)
    halves = {
        dtype: RoleForward(model, device, RolePrecision(dtype, dtype, "fp32")) for dtype in dtypes
    }
    measured = list[tuple[HalfName, float, int, _Errors]]()
    for number, (length, batch) in enumerate(sorted(sequences.items())):
        progress(number, len(sequences), unit="lengths measured")
        parts = defaultdict[tuple[HalfName, float], list[_Errors]](list)
        for rows in _in_parts(batch.to(device), vocabulary_size(model)):
            for key, errors in _compare(reference, halves, rows, temperatures):
                parts[key].append(errors)
        measured += [(*key, length, _Errors.joined(pieces)) for key, pieces in parts.items()]
    if weights_sha256({"policy": model}) != before:
        raise ComparisonError(
            "the float32 weights changed during the static comparison: the result is void"
        )
    return ComparisonResult(
        by_length=[_row(*entry, 1, entry[2] - 1) for entry in measured],
        by_position=[row for entry in measured for row in _rows_by_position(*entry)],
        sequence_error={
            (dtype, temperature, length): _number(errors.sequences_B.abs(), torch.mean)
            for dtype, temperature, length, errors in measured
        },
        weights_sha256=before,
    )


def continuations(
    model: Module,
    prompts: Sequence[Sequence[int]],
    *,
    length: int,
    special: SpecialTokens,
    device: torch.device,
    seed: int,
) -> TokenBatch:
    """Sequences of *length* tokens at most: what *model* in float32 adds to each of *prompts*.

    They are what a rollout would generate, at temperature 1. A sequence ends before *length* where
    the model ends it.

    Raises:
        ComparisonError: *length* leaves no room for a completion.
        RolloutRequestError: The sequences do not fit into the model's context.
    """
    longest = max(map(len, prompts))
    if length <= longest:
        raise ComparisonError(
            f"length {length} leaves no room after the longest prompt, which has {longest} tokens: "
            "choose a greater length or shorter prompts"
        )
    forward = RoleForward(model, device, FP32)
    engine = TransformersRollout(forward, pad_token=special.pad, stop_tokens=special.stop)
    return engine.generate(prompts, sampling=Sampling(), max_new_tokens=length - longest, seed=seed)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Errors:
    """Of the valid tokens of some sequences, float64; NaN where the half type is not finite."""

    positions_N: Tensor
    simulated_N: Tensor
    real_N: Tensor
    simulated_kl_N: Tensor
    real_kl_N: Tensor
    sequences_B: Tensor  # Σ real_N of each sequence

    @classmethod
    def joined(cls, parts: Sequence[_Errors]) -> _Errors:
        return cls(
            **{
                field.name: torch.cat([getattr(part, field.name) for part in parts])
                for field in fields(cls)
            }
        )

    def at(self, first: int, last: int) -> _Errors:
        """Of the tokens from position *first* to *last*."""
        chosen_N = (self.positions_N >= first) & (self.positions_N <= last)
        return _Errors(
            **{
                field.name: getattr(self, field.name)[chosen_N]
                for field in fields(self)
                if field.name != "sequences_B"
            },
            sequences_B=self.sequences_B,
        )


def _in_parts(batch: TokenBatch, vocabulary: int) -> Iterator[TokenBatch]:
    rows = max(1, _MOST_LOGITS // (batch.tokens_BT.shape[1] * vocabulary))
    for first in range(0, len(batch), rows):
        yield batch.rows(slice(first, first + rows))


def _compare(
    reference: RoleForward,
    halves: Mapping[HalfName, RoleForward],
    batch: TokenBatch,
    temperatures: Sequence[float],
) -> Iterator[tuple[tuple[HalfName, float], _Errors]]:
    wanted_BTV = _logits(reference, batch)
    if not wanted_BTV[:, :-1][batch.response_mask_BS].isfinite().all():
        raise ComparisonError(
            "the float32 model itself returns NaN or infinity, so there is nothing to compare "
            "with: use other weights"
        )
    for dtype, half in halves.items():
        real_BTV = _logits(half, batch)
        for temperature in temperatures:
            yield (dtype, temperature), _errors(wanted_BTV, real_BTV, batch, dtype, temperature)


def _logits(forward: RoleForward, batch: TokenBatch) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        logits_BTV: Tensor = forward(**batch.model_inputs(), use_cache=False).logits
    return logits_BTV


def _errors(
    wanted_BTV: Tensor, real_BTV: Tensor, batch: TokenBatch, dtype: HalfName, temperature: float
) -> _Errors:
    mask_BS, tokens_BS = batch.response_mask_BS, batch.predicted_tokens_BS
    kept = mask_BS.nonzero(as_tuple=True)
    tokens_N1 = tokens_BS[kept].unsqueeze(-1)

    def log_probs(logits_BTV: Tensor) -> Tensor:
        return (logits_BTV[:, :-1][kept].float() / temperature).log_softmax(-1)

    wanted_NV = log_probs(wanted_BTV)
    rounded_BTV = wanted_BTV.to(Precision(dtype).compute)
    simulated_N, simulated_kl_N = _difference(wanted_NV, log_probs(rounded_BTV), tokens_N1)
    real_N, real_kl_N = _difference(wanted_NV, log_probs(real_BTV), tokens_N1)
    sequences_BS = torch.zeros(mask_BS.shape, dtype=torch.float64)
    sequences_BS[mask_BS.cpu()] = real_N
    return _Errors(
        positions_N=batch.position_ids_BT[:, 1:][kept].cpu(),
        simulated_N=simulated_N,
        real_N=real_N,
        simulated_kl_N=simulated_kl_N,
        real_kl_N=real_kl_N,
        sequences_B=sequences_BS.sum(1),
    )


def _difference(wanted_NV: Tensor, found_NV: Tensor, tokens_N1: Tensor) -> tuple[Tensor, Tensor]:
    """Δ log p of the tokens and KL(wanted ‖ found), [N] float64 on the CPU."""
    wanted_N, found_N = (
        log_probs_NV.gather(-1, tokens_N1)[:, 0].double() for log_probs_NV in (wanted_NV, found_NV)
    )
    kl_N = (wanted_NV.double().exp() * (wanted_NV.double() - found_NV.double())).sum(-1)
    finite_N = found_N.isfinite() & kl_N.isfinite()
    nan = torch.tensor(float("nan"), dtype=torch.float64, device=kl_N.device)
    return (
        torch.where(finite_N, found_N - wanted_N, nan).cpu(),
        torch.where(finite_N, kl_N, nan).cpu(),
    )


def _rows_by_position(
    dtype: HalfName, temperature: float, length: int, errors: _Errors
) -> Iterator[ComparisonRow]:
    first, last = 1, int(errors.positions_N.max())
    while first <= last:
        end = min(2 * first - 1, last)
        part = errors.at(first, end)
        if len(part.positions_N):
            yield _row(dtype, temperature, length, part, first, end)
        first = 2 * first


def _row(
    dtype: HalfName, temperature: float, length: int, errors: _Errors, first: int, last: int
) -> ComparisonRow:
    finite_N = ~(errors.simulated_N.isnan() | errors.real_N.isnan())  # the same tokens for both
    simulated_N, real_N = errors.simulated_N[finite_N].abs(), errors.real_N[finite_N].abs()
    simulated, real = _number(simulated_N, torch.mean), _number(real_N, torch.mean)
    return ComparisonRow(
        dtype=dtype,
        temperature=temperature,
        seq_length=length,
        first_position=first,
        last_position=last,
        tokens=len(finite_N),
        nonfinite_tokens=int((~finite_N).sum()),
        simulated_logp_error_mean=simulated,
        simulated_logp_error_p99=_number(simulated_N, _p99),
        simulated_logp_error_max=_number(simulated_N, torch.amax),
        real_logp_error_mean=real,
        real_logp_error_p99=_number(real_N, _p99),
        real_logp_error_max=_number(real_N, torch.amax),
        real_logp_bias=_number(errors.real_N[finite_N], torch.mean),
        kernel_contribution=None if real is None or simulated is None else real - simulated,
        simulated_kl=_number(errors.simulated_kl_N[finite_N], torch.mean),
        real_kl=_number(errors.real_kl_N[finite_N], torch.mean),
    )


def _p99(values_N: Tensor) -> Tensor:
    return values_N.sort().values[max(0, -(-99 * len(values_N) // 100) - 1)]


def _number(values_N: Tensor, statistic: Callable[[Tensor], Tensor]) -> float | None:
    """*statistic* of the values that are not NaN; None if there are none."""
    finite_N = values_N[~values_N.isnan()]
    return statistic(finite_N).item() if len(finite_N) else None

"""The static comparison as a command: sequences of a model's own, and two files of results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from infrastructure.agent_contract.run_context import ReportProgress
from infrastructure.events.role_precision import HalfName, RolePrecision
from infrastructure.files import write_atomically, write_json
from infrastructure.policy import Sampling
from infrastructure.policy.models import context_length
from infrastructure.precision_lab.environment import describe_environment, fixed_numerics
from infrastructure.precision_lab.progress import unreported
from infrastructure.precision_lab.results import FORMAT
from infrastructure.precision_lab.small_policy import BASE_MODEL, BasePolicy, base_policy
from infrastructure.precision_lab.static_comparison.compare import (
    ComparisonError,
    ComparisonResult,
    compare,
    continuations,
)
from infrastructure.training.precision import resolve_device

FOLDER, ROWS, SUMMARY = "probe", "probe_results.csv", "summary.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparisonRequest:
    """What to measure.

    Attributes:
        base_model: Folder of a model, or ``small``.
        prompts: Number of sequences of each length.
        lengths: Longest sequences, in tokens.
        temperatures: Divisors of the logits.
        dtypes: Half types.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        seed: Decides the small policy and the sequences.

    Raises:
        ComparisonError: A value cannot be used.
    """

    base_model: str = BASE_MODEL
    prompts: int = 8
    lengths: tuple[int, ...] = (64, 128, 256)
    temperatures: tuple[float, ...] = (0.5, 1.0)
    dtypes: tuple[HalfName, ...] = ("bf16", "fp16")
    device: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        try:
            for temperature in self.temperatures:
                Sampling(temperature=temperature)
            resolve_device(self.device)
        except ValueError as error:
            raise ComparisonError(str(error)) from error
        if self.prompts < 1 or not self.lengths or min(self.lengths) < 2:
            raise ComparisonError(
                f"it needs at least one prompt and lengths of at least 2 tokens, got "
                f"{self.prompts} prompts and the lengths {list(self.lengths)}"
            )


def half_types(names: Sequence[str]) -> tuple[HalfName, ...]:
    """*names* as half types.

    Raises:
        ComparisonError: One is another word.
    """
    known: dict[str, HalfName] = {"bf16": "bf16", "fp16": "fp16"}
    if unknown := [name for name in names if name not in known]:
        raise ComparisonError(f"a half type is bf16 or fp16, got {unknown[0]!r}")
    return tuple(known[name] for name in names)


def run_comparison(
    request: ComparisonRequest,
    output: Path,
    *,
    base: BasePolicy | None = None,
    progress: ReportProgress = unreported,
) -> ComparisonResult:
    """Measure and write ``probe/probe_results.csv`` and ``probe/summary.json`` below *output*.

    Args:
        base: Model and prompts; by default those that *request* names.
        progress: Told of each length that is generated and measured.

    Raises:
        ComparisonError: Nothing can be measured.
        PolicyModelError: The model cannot be loaded.
        OSError: The disk refuses.
    """
    device = resolve_device(request.device)
    (output / FOLDER).mkdir(parents=True, exist_ok=True)  # a disk that refuses costs no model
    base = base or base_policy(
        request.base_model, seed=request.seed, prompts=request.prompts, progress=progress
    )
    limit = context_length(base.model) or math.inf
    too_long = [length for length in sorted(set(request.lengths)) if length > limit]
    lengths = sorted(set(request.lengths) - set(too_long))
    sequences = {}
    for number, length in enumerate(lengths):
        progress(number, len(lengths), unit="lengths generated")
        sequences[length] = continuations(
            base.model,
            base.prompts,
            length=length,
            special=base.special,
            device=device,
            seed=request.seed,
        )
    if not sequences:
        raise ComparisonError(
            f"every length is beyond the model's context of {limit} tokens: choose smaller ones"
        )
    with fixed_numerics():
        result = compare(
            base.model,
            sequences,
            dtypes=request.dtypes,
            temperatures=request.temperatures,
            device=device,
            progress=progress,
        )
    result = replace(
        result,
        not_measured=tuple(f"length {n}: the model's context is {limit} tokens" for n in too_long),
    )
    write_atomically(output / FOLDER / ROWS, result.to_csv())
    summary = _summary(request, result)
    summary["environment"] = describe_environment(device)
    write_json(output / FOLDER / SUMMARY, summary)
    return result


def _summary(request: ComparisonRequest, result: ComparisonResult) -> dict[str, object]:
    return {
        "format": FORMAT,
        "request": asdict(request),
        "weights_sha256": result.weights_sha256,
        "precision": {dtype: str(RolePrecision(dtype, dtype, "fp32")) for dtype in request.dtypes},
        "log_softmax": "fp32",
        "by_length": [
            {
                **asdict(row),
                "sequence_error_mean": result.sequence_error[
                    row.dtype, row.temperature, row.seq_length
                ],
            }
            for row in result.by_length
        ],
        "not_measured": result.not_measured,
    }

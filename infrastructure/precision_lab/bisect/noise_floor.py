"""How far a result may move in half precision before a place is to blame.

Half precision cannot do better than ideal mixed precision: matrix products read half operands, and
everything else is FP32. Each operand of a product is then off by up to half a unit in the last
place. `NoiseFloor` puts such errors, drawn at random, into an FP32 run and measures how far each
quantity moves. A place that loses much more than that is a fault, and it can be cured.

Errors of operands are what Higham 2002, "Accuracy and Stability of Numerical Algorithms", section
1.5, calls backward errors of each product, and random ones in place of actual ones are Monte Carlo
arithmetic (Parker 1997). They have no range: an overflow or underflow is always more than the
floor.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from torch import Tensor

from infrastructure.agent_contract.run_context import ReportProgress
from infrastructure.events import Role
from infrastructure.events.role_precision import RolePrecision
from infrastructure.precision_lab.errors import LabError
from infrastructure.precision_lab.experiment import (
    GRADIENT,
    Experiment,
    ExperimentResult,
    in_fp32,
)
from infrastructure.precision_lab.numerics import OperandNoise, unit_roundoff
from infrastructure.precision_lab.progress import unreported

_SEEDS = range(8)  # of the errors
_SMALL = 2.0**-11  # share of errors whose effect is proportional to them
_MUCH = 8.0  # as `TOLERANCE` of a search


class NotFiniteError(LabError, ValueError):
    """The FP32 result itself holds NaN or infinity; the message names the quantities."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(
            f"in FP32 already {', '.join(sorted(names))} are not finite, so half precision is not "
            "to blame. Look for the cause with FP16TrainingConfig(detect_anomaly=True) first"
        )


@dataclass(frozen=True, slots=True)
class Deviation:
    """How far an outcome is from the FP32 one.

    Attributes:
        ratio: Largest root mean square error of a quantity, as a multiple of its noise floor.
            Infinite if a quantity is not finite.
        quantity: The quantity that has it.
        error: Why there is no outcome, such as a constant that the half type cannot hold.
    """

    ratio: float
    quantity: str
    error: str = ""


class NoiseFloor:
    """Root mean square error of each quantity in ideal mixed precision.

    Args:
        experiment: What is repeated.
        precisions: Types of each role; operands of products are disturbed in roles with a half
            type.
        progress: Told of each run.

    Attributes:
        runs: Number of repetitions: two in FP32, and eight with other errors each.
        reference: The FP32 outcome.
        errors: Floor of each quantity, in its own unit. At least half a unit in the last place of
            its largest root mean square, since the result itself may be stored in half. Errors of
            operands may leave a gradient as it is where those of results do not, since large
            terms cancel: that of a bias before a batch normalisation is 0 but for rounding. Where
            small errors of results do, in proportion, 8 times as much, that is the floor.

    Raises:
        NotFiniteError: The FP32 outcome is not finite.
    """

    def __init__(
        self,
        experiment: Experiment,
        precisions: Mapping[Role, RolePrecision],
        progress: ReportProgress = unreported,
    ) -> None:
        unit = "repetitions for the noise floor"
        self.runs = 2 + len(_SEEDS)
        progress(0, self.runs, unit=unit)
        self.reference = experiment.run(in_fp32)
        expected = self.reference.quantities
        broken = [name for name, value in expected.items() if not value.isfinite().all()]
        if broken:
            raise NotFiniteError(broken)
        squares = dict.fromkeys(expected, 0.0)
        for number, seed in enumerate(_SEEDS, start=1):
            progress(number, self.runs, unit=unit)
            with OperandNoise(precisions, seed) as noise:
                quantities = experiment.run(noise.role).quantities
            for name, value in quantities.items():
                squares[name] += _mean_square(value - expected[name]) / len(_SEEDS)
        roundoff = max((unit_roundoff(precision) for precision in precisions.values()), default=0.0)
        self.errors = {
            name: max(squares[name] ** 0.5, roundoff * _mean_square(value) ** 0.5)
            for name, value in expected.items()
        }
        progress(self.runs - 1, self.runs, unit=unit)
        with OperandNoise(precisions, len(_SEEDS), share=_SMALL, results=True) as noise:
            moved = experiment.run(noise.role).quantities
        for parameter in self.reference.gradients():
            name = f"{GRADIENT}{parameter}"
            by = _mean_square(moved[name] - expected[name]) ** 0.5 / _SMALL
            if by > _MUCH * self.errors[name]:
                self.errors[name] = by

    def deviation(self, outcome: ExperimentResult) -> Deviation:
        """How far *outcome* is from the FP32 one."""
        ratios = {
            name: self._ratio(name, outcome.quantities[name])
            for name in self.errors
            if self.reference.quantities[name].numel()
        }
        quantity = max(ratios, key=lambda name: ratios[name])
        return Deviation(ratios[quantity], quantity)

    def _ratio(self, name: str, value: Tensor) -> float:
        if not value.isfinite().all():
            return float("inf")
        error = _mean_square(value - self.reference.quantities[name]) ** 0.5
        if error == 0:
            return 0.0
        return error / self.errors[name] if self.errors[name] > 0 else float("inf")


def _mean_square(value: Tensor) -> float:
    return float(value.double().square().mean()) if value.numel() else 0.0

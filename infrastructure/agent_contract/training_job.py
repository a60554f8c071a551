"""What an agent hands to the trainer, and what comes back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module, Parameter
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

Batch: TypeAlias = "Mapping[str, Tensor]"
ScheduleCounts: TypeAlias = Literal["attempted", "applied"]


class Forward(Protocol):
    """The model as the trainer hands it over.

    A call runs the module under the run's precision and returns float32, so that losses,
    likelihoods and variances are float32 by construction. Any attribute other than `method`
    raises, since reaching past this object would silently compute in FP32.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's ``forward``; floating tensors of the result come back as float32."""

    def method(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Run the module's method *name* (``encode``, say) as `__call__` runs ``forward``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """Held-out metrics of one model.

    Attributes:
        metrics: Name to value.
        primary: The metric that decides.
        higher_is_better: Direction of the primary metric.

    Raises:
        ValueError: *primary* is not among the metrics.
    """

    metrics: Mapping[str, float]
    primary: str
    higher_is_better: bool

    def __post_init__(self) -> None:
        if self.primary not in self.metrics:
            raise ValueError(f"primary metric {self.primary!r} is not among {sorted(self.metrics)}")

    @property
    def value(self) -> float:
        """The primary metric."""
        return self.metrics[self.primary]

    def better_than(self, other: Evaluation) -> bool:
        """Whether this primary value beats *other*'s; a value that is not a number never does."""
        if math.isnan(self.value):
            return False
        if math.isnan(other.value):
            return True
        return self.value > other.value if self.higher_is_better else self.value < other.value


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationReport:
    """What `Agent.publish` decides on.

    Attributes:
        evaluation: Of the trained model, on held-out data.
        steps: Optimizer steps attempted over all attempts.
        epochs: Epochs trained.
    """

    evaluation: Evaluation
    steps: int
    epochs: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Publication:
    """The outcome of `Agent.publish`; a refusal is a successful run.

    Attributes:
        published: Whether the model is now the one in use.
        reason: Why, in one line an operator understands.
        metrics: Of the candidate and what it was compared with.
    """

    published: bool
    reason: str
    metrics: Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingJob:
    """A model, its data and its objective; no precision, no scaler.

    Attributes:
        model: All parameters float32, on any device: the trainer moves it.
        optimizer: Builds the optimizer from the model's parameters; ``fused=True`` is fastest.
        batches: Epoch to batches; the same epoch must give the same batches, or a resumed run
            would see other data. Tensors may live on the CPU.
        loss: Forward and batch to a float32 scalar; autocast is off inside it.
        evaluate: Held-out evaluation; called without gradients.
        epochs: How many epochs to train.
        scheduler: Builds a learning-rate scheduler, which is stepped by the trainer.
        scheduler_counts: What steps it: ``attempted`` optimizer steps, so that a schedule as long
            as the run ends with it; or ``applied`` ones, so that a skipped step holds it back.
        accumulate: Micro-batches per optimizer step.
    """

    model: Module
    optimizer: Callable[[Iterable[Parameter]], Optimizer]
    batches: Callable[[int], Iterable[Batch]]
    loss: Callable[[Forward, Batch], Tensor]
    evaluate: Callable[[Forward], Evaluation]
    epochs: int
    scheduler: Callable[[Optimizer], LRScheduler] | None = None
    scheduler_counts: ScheduleCounts = "attempted"
    accumulate: int = 1

    def __post_init__(self) -> None:
        if self.scheduler_counts not in ("attempted", "applied"):
            raise ValueError(
                f"scheduler_counts must be attempted or applied, got {self.scheduler_counts!r}"
            )
        if self.epochs < 1 or self.accumulate < 1:
            raise ValueError(
                f"epochs and accumulate must be at least 1, got {self.epochs} and {self.accumulate}"
            )

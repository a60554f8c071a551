"""What an agent gives the trainer, and what the trainer returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, TypeAlias

from infrastructure.agent_contract.parts import (
    JointLoss,
    Part,
    Target,
    check_parts,
    modules_among,
    parts_among,
)

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module, Parameter
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

Batch: TypeAlias = "Mapping[str, Tensor]"
ScheduleCounts: TypeAlias = Literal["attempted", "applied"]


class Forward(Protocol):
    """The model as the trainer passes it to a job's functions.

    A call runs the module under the run's precision and returns float32, so that losses,
    likelihoods and variances are float32 by construction. Any attribute other than `method`
    raises: access to the module itself would silently compute in FP32.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's ``forward``; its result keeps its types, half tensors become float32.

        An object whose tensors cannot be replaced, or that the model works on with, such as a
        cache, comes back as it is; see docs/reference/models.md.
        """

    def method(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Run the module's method *name* (``encode``, …) as `__call__` runs ``forward``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """Held-out metrics of one model.

    Attributes:
        metrics: Name to value.
        primary: Name of the metric that decides.
        higher_is_better: Direction of the primary metric.
        selection_loss: Loss that compares epochs for `Job.patience` and for the best epoch, lower
            is better; measured on other held-out data than the metrics, which are reported, so
            must not select. None if the primary metric compares them.

    Raises:
        ValueError: *primary* is not among the metrics.
    """

    metrics: Mapping[str, float]
    primary: str
    higher_is_better: bool
    selection_loss: float | None = None

    def __post_init__(self) -> None:
        if self.primary not in self.metrics:
            raise ValueError(
                f"evaluate() names {self.primary!r} as its primary metric, but its metrics are "
                f"{sorted(self.metrics)}: add it to them, or name one of them"
            )

    @property
    def value(self) -> float:
        """Value of the primary metric."""
        return self.metrics[self.primary]

    def better_than(self, other: Evaluation | None) -> bool:
        """Whether this primary value beats *other*'s, if there is one; NaN beats nothing."""
        if math.isnan(self.value):
            return False
        if other is None or math.isnan(other.value):
            return True
        return self.value > other.value if self.higher_is_better else self.value < other.value


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationReport:
    """Result of training, on which `Agent.publish` decides.

    Attributes:
        evaluation: Evaluation of the model that `Agent.publish` gets, on held-out data.
        steps: Number of optimizer steps attempted in all attempts.
        epochs: Number of epochs trained.
    """

    evaluation: Evaluation
    steps: int
    epochs: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Publication:
    """Outcome of `Agent.publish`; a run that does not publish succeeds too.

    Attributes:
        published: Whether the trained model is now in use.
        reason: Why or why not, in one line for the operator.
        metrics: Metrics of the candidate and of the models it was compared with.
    """

    published: bool
    reason: str
    metrics: Mapping[str, float]


def _missing(*_given: object) -> NoReturn:
    raise TypeError("a job needs an optimizer and a loss")


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What every kind of job has: a model and its objective; without precision and scaler.

    Attributes:
        model: Model whose parameters are float32, on any device: the trainer moves it.
        optimizer: Function that builds the optimizer from the model's parameters; ``fused=True`` is
            fastest.
        loss: Function from forward and batch to a scalar, shape ``[]``, float32; autocast is off
            inside it.
        evaluate: Function that evaluates on held-out data; called without gradients.
        epochs: Number of epochs to train, at most; the model is evaluated after each.
        patience: Number of evaluations in a row, none better than the best before them, that end
            the training, unless its last loss was not finite, because that is handled first; None
            trains all epochs. The schedule of the learning rate does not
            depend on it, so the weights of every epoch are those of a training without it.
        scheduler: Function that builds a learning-rate scheduler; the trainer steps it.
        scheduler_counts: Which steps advance it: ``attempted`` optimizer steps, so that a schedule
            as long as the run ends with the run; or only ``applied`` ones, not skipped ones.
        accumulate: Micro-batches per optimizer step.
        keep_fp32: Modules that compute in FP32 under every precision, with all modules inside
            them: qualified names, or patterns in which ``*`` matches any characters; or
            ``part:NAME``, a part whose steps see all of the model in FP32.
        parts: Parts that train the model, in the order of their steps, instead of one optimizer
            and one loss: give either these or those.
        targets: Target networks in the model.

    Raises:
        ValueError: A value is outside its range, or there are parts beside what they replace.
        TypeError: There is neither an optimizer and a loss nor a part.
    """

    model: Module
    evaluate: Callable[[Forward], Evaluation]
    epochs: int
    optimizer: Callable[[Iterable[Parameter]], Optimizer] = _missing
    loss: Callable[[Forward, Batch], Tensor] = _missing
    scheduler: Callable[[Optimizer], LRScheduler] | None = None
    scheduler_counts: ScheduleCounts = "attempted"
    accumulate: int = 1
    keep_fp32: Sequence[str] = ()
    patience: int | None = None
    parts: Sequence[Part] = ()
    targets: Sequence[Target] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "keep_fp32", module_names(self.keep_fp32))
        self._check_parts()
        if _missing in (self.optimizer, self.loss):
            raise TypeError(
                f"a {type(self).__name__} needs an optimizer and a loss, or parts that have them"
            )
        if self.scheduler_counts not in ("attempted", "applied"):
            raise ValueError(
                f"scheduler_counts must be attempted or applied, got {self.scheduler_counts!r}"
            )
        if self.epochs < 1 or self.accumulate < 1:
            raise ValueError(
                f"epochs and accumulate must be at least 1, got {self.epochs} and {self.accumulate}"
            )
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"patience must be at least 1, or None, got {self.patience}")

    @property
    def kept_modules(self) -> tuple[str, ...]:
        """The names in `keep_fp32` that are modules, not parts."""
        return modules_among(self.keep_fp32, self.parts)

    def _check_parts(self) -> None:
        """Check the parts; the loss of a job that has them is the sum of theirs."""
        modules = self.model.named_modules(remove_duplicate=False) if self.keep_fp32 else ()
        check_parts(self.parts, self.targets, self.keep_fp32, [name for name, _ in modules])
        if not self.parts:
            return
        if self.scheduler is not None or self.accumulate > 1:
            raise ValueError(
                "a job with parts takes no scheduler and no accumulate: give each part a "
                "scheduler of its own, and larger batches"
            )
        if self.loss is not _missing and not isinstance(self.loss, JointLoss):
            raise ValueError("a job has parts, or an optimizer and a loss, but not both")
        kept = dict.fromkeys(parts_among(self.keep_fp32, self.parts), "fp32")
        loss = JointLoss(self.parts, precisions=kept)
        object.__setattr__(self, "loss", loss)
        object.__setattr__(self, "optimizer", self.parts[0].optimizer)  # to time a step with


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingJob(Job):
    """A job whose batches are known before training: a model learns from recorded data.

    Attributes:
        batches: Function from an epoch to its batches; the same epoch must give the same batches,
            or a resumed run would train on other data. Tensors may be on the CPU.
        keep_best_epoch: Whether `Agent.publish` gets the weights of the epoch with the best
            evaluation instead of those of the last epoch. See `Evaluation.selection_loss`: the
            best of many evaluations is too good to decide about publication.
        compile: Whether steps run the model by ``torch.compile``, compiled once for each precision.
            Where that fails they are eager, and the notice ``compile_refused`` tells why. An
            evaluation is always eager. An `OnPolicyJob` cannot be compiled: its rollouts, which
            are eager, would disagree with its steps.
    """

    batches: Callable[[int], Iterable[Batch]]
    keep_best_epoch: bool = False
    compile: bool = False


def module_names(names: object) -> tuple[str, ...]:
    """Return *names*, the value of a ``keep_fp32``, as a tuple.

    Raises:
        ValueError: It is not a collection of strings that are not empty.
    """
    if not isinstance(names, str) and isinstance(names, Iterable):
        given = tuple(names)
        if all(isinstance(name, str) and name.strip() for name in given):
            return given
        names = list(given)
    raise ValueError(
        "keep_fp32 must be a list of module names, such as ['encoder.rnn', '*.norm'], got "
        f"{names!r}"
    )

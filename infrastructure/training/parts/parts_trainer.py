"""The step of a job with several parts: one trainer for each, over the same model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.nn import Module
from torch.optim.lr_scheduler import LRScheduler

from infrastructure.agent_contract import Forward, Part, Target
from infrastructure.agent_contract.parts import (
    Computed,
    JointLoss,
    modules_among,
    parts_among,
)
from infrastructure.agent_contract.training_job import Batch
from infrastructure.events import PrecisionName, PrecisionState
from infrastructure.training.config import FP16TrainingConfig
from infrastructure.training.fp16_trainer import FP16Trainer
from infrastructure.training.parts.part_parameters import part_parameters, require_own
from infrastructure.training.parts.target_network import TargetNetwork
from infrastructure.training.precision import Precision
from infrastructure.training.step_record import StepReading


@dataclass(frozen=True, kw_only=True, slots=True)
class PartTrainer:
    """What trains one part.

    Attributes:
        part: As declared.
        trainer: Steps the part's parameters.
        schedule: Learning-rate scheduler, or None.
        targets: Targets that follow the part's parameters.
    """

    part: Part
    trainer: FP16Trainer
    schedule: LRScheduler | None
    targets: Sequence[TargetNetwork]

    def step(self, batch: Batch, computed: Computed) -> None:
        """Take the part's step for *batch*; then its targets and its schedule follow."""

        def loss(forward: Forward, batch: Batch) -> Tensor:
            return self.part.loss(forward, batch, computed)

        computed.part = self.part
        trainer = self.trainer
        trainer.train_batch(batch, loss)
        if (skipped := trainer.last_step_skipped) is None:
            return  # no gradient: nothing was to be stepped
        for target in self.targets:
            target.update(skipped)
        if self.schedule is not None:
            self.schedule.step()


class PartsTrainer:
    """Trains a model part by part. It has what the training loop needs of an `FP16Trainer`.

    Each part's parameters, optimizer, loss scale and counters are those of a trainer of its own.
    The counters here are sums: a step is a step of one part.

    A part in FP32, by ``keep_fp32``, or in another precision, by a wish's parts, takes its steps so
    while the others are in half precision.

    Args:
        model: Model of the job, on one device and in this process alone.
        parts: Parts in the order of their steps; see `Part`.
        targets: Target networks, which become equal to their sources; see `Target`.
        config: Configuration of every part's trainer, but for what the part states itself.
        wish: The precision to begin with.

    Attributes:
        model, config: As given.
        device: The model's device.
        parts: What trains each part, by its name, in the order of their steps.
        record: Counters over all parts.
        state: Saves and restores what a checkpoint holds.

    Raises:
        ValueError: Parts or targets do not fit the model, or `FP16Trainer` refuses one of them.
    """

    def __init__(
        self,
        model: Module,
        parts: Sequence[Part],
        targets: Sequence[Target],
        config: FP16TrainingConfig,
        *,
        wish: PrecisionState,
    ) -> None:
        self.model, self.config = model, config
        self._kept = parts_among(config.keep_fp32, parts)
        self._wish = wish
        chosen = part_parameters(model, parts, targets)
        followers = [TargetNetwork(target, model, chosen) for target in targets]
        self.parts: dict[str, PartTrainer] = {}
        for part in parts:
            optimizer = part.optimizer(chosen[part.name])
            require_own(optimizer, part, chosen[part.name], model)
            self.parts[part.name] = PartTrainer(
                part=part,
                trainer=FP16Trainer(
                    model, optimizer, _config_of(part, parts, config), wish=self._wish_of(part)
                ),
                schedule=None if part.scheduler is None else part.scheduler(optimizer),
                targets=[follower for follower in followers if follower.part == part.name],
            )
        self._members = list(self.parts.values())
        self._trainers = [member.trainer for member in self._members]
        self.device = self._trainers[0].device
        self._batches = 0
        self.record = PartsRecord(self._trainers)
        self.state = PartsState(self)

    def train_batch(
        self,
        batch: Batch,
        compute_loss_fn: Callable[[Forward, Batch], Tensor] | None = None,
        *,
        replay: bool = False,
    ) -> None:
        """Take the step of each part whose turn it is.

        Args:
            batch: Passed to the losses of the parts.
            compute_loss_fn: Not used: each part has a loss.
            replay: Not used: there is one rank.

        Raises:
            NotComputedError: A loss reads what earlier parts have not computed.
        """
        del compute_loss_fn, replay
        computed = Computed(self._members[0].part)
        for member in self._members:
            if self._batches % member.part.every == 0:
                member.step(batch, computed)
        self._batches += 1

    def finish_window(self) -> None:
        """Nothing to finish: parts do not accumulate."""

    @property
    def at_step_boundary(self) -> bool:
        """True: parts do not accumulate."""
        return True

    @property
    def training_steps(self) -> int:
        """Optimizer steps attempted, of all parts."""
        return self.record.training_steps

    @property
    def last_step_attempted(self) -> bool:
        """Whether a part's last step had gradients."""
        return any(trainer.last_step_attempted for trainer in self._trainers)

    @property
    def precision_state(self) -> PrecisionState:
        """Requested, effective and the reason; and the parts whose precision is another one."""
        return self._leading.precision_state

    @property
    def precision(self) -> Precision:
        """The effective precision of the parts that have no other one."""
        return self._leading.precision

    @property
    def forward(self) -> Forward:
        """The model under the effective precision."""
        return self._leading.forward

    @property
    def _leading(self) -> FP16Trainer:
        """The trainer of the first part that has no precision of its own."""
        changed = self._changed
        others = (part.trainer for name, part in self.parts.items() if name not in changed)
        return next(others, self._trainers[0])

    @property
    def joint_loss(self) -> JointLoss:
        """The sum of the losses of all parts, each in the precision of its part."""
        return JointLoss([p.part for p in self._members], precisions=self._changed)

    def set_precision(self, wish: PrecisionState) -> PrecisionState:
        """Change the precision of all parts; see `FP16Trainer.set_precision`."""
        self._wish = wish
        for member in self._members:
            member.trainer.set_precision(self._wish_of(member.part))
        return self.precision_state

    @property
    def _changed(self) -> dict[str, PrecisionName]:
        """Parts with a precision of their own, while the job is in half precision."""
        kept: dict[str, PrecisionName] = dict.fromkeys(self._kept, "fp32")
        return {**self._wish.parts, **kept}

    def _wish_of(self, part: Part) -> PrecisionState:
        changed = self._changed.get(part.name)
        if changed is None or self._wish.effective == "fp32":
            return self._wish
        return replace(self._wish, requested=changed, effective=changed, parts={})

    def start_reading(self) -> Callable[[], StepReading | None]:
        """Start to read every part's counters; see `FP16Trainer.start_reading`.

        The result holds sums of the steps, the largest number of non-finite losses in a row, the
        lowest loss scale, the mean loss and the largest gradient norm; and each part's reading.
        """
        polls = {name: member.trainer.start_reading() for name, member in self.parts.items()}
        arrived: dict[str, StepReading] = {}

        def poll() -> StepReading | None:
            for name in polls.keys() - arrived.keys():
                if (reading := polls[name]()) is not None:
                    arrived[name] = reading
            if len(arrived) < len(polls):
                return None
            return _joined({name: arrived[name] for name in polls}, self._lowest_scale)

        return poll

    def get_stats(self) -> dict[str, float | int | bool | str]:
        """Counters of all parts; see `FP16Trainer.get_stats`. The loss scale is the lowest one."""
        stats = [trainer.get_stats() for trainer in self._trainers]
        totals = self.record.state_dict()
        applied = sum(int(part["applied_steps"]) for part in stats)
        rate = totals["overflow_steps"] / max(1, totals["training_steps"])
        scales = [float(part["current_scale"]) for part in stats]
        lowest = self._lowest_scale(dict(zip(self.parts, scales, strict=True)))
        joint = {"applied_steps": applied, "overflow_rate": rate, "current_scale": lowest}
        return {**stats[0], **totals, **joint}

    def _lowest_scale(self, scales: Mapping[str, float]) -> float:
        """The lowest loss scale, by part, of those that have no precision of their own."""
        changed = self._changed
        return min(s for n, s in scales.items() if n not in changed or len(changed) == len(scales))

    def part_totals(self) -> dict[str, tuple[int, int, int]]:
        """`StepReading.totals` of each part so far; reads the device."""
        states = {name: part.trainer.record.state_dict() for name, part in self.parts.items()}
        return {
            name: (
                state["training_steps"],
                state["overflow_steps"],
                state["nonfinite_loss_steps"],
            )
            for name, state in states.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """Model, and every part's optimizer, scale, counters and schedule; reads the device."""
        return self.state.to_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned under any precision; the one in force stays.

        Raises:
            ValueError: The state belongs to another model or to other parts.
        """
        self.state.load(state)

    def count_batches(self, batches: int) -> None:
        """Go on as after so many *batches*: they decide whose turn it is."""
        self._batches = batches

    @property
    def batches(self) -> int:
        """Batches trained on so far."""
        return self._batches


class PartsRecord:
    """Counters of several trainers, added up."""

    def __init__(self, trainers: Sequence[FP16Trainer]) -> None:
        self._records = [trainer.record for trainer in trainers]

    @property
    def training_steps(self) -> int:
        """Optimizer steps attempted."""
        return sum(record.training_steps for record in self._records)

    @property
    def fp16_steps(self) -> int:
        """Steps attempted under FP16."""
        return sum(record.fp16_steps for record in self._records)

    @property
    def no_gradient_steps(self) -> int:
        """Steps in which no parameter had a gradient."""
        return sum(record.no_gradient_steps for record in self._records)

    @property
    def last_loss_was_finite(self) -> bool:
        """Whether the last loss of every part was finite; reads the device."""
        return all(record.last_loss_was_finite for record in self._records)

    def state_dict(self) -> dict[str, int]:
        """The totals as plain numbers; reads the device."""
        states = [record.state_dict() for record in self._records]
        return {name: sum(state[name] for state in states) for name in states[0]}


class PartsState:
    """The state of a `PartsTrainer` that checkpoints hold."""

    def __init__(self, trainer: PartsTrainer) -> None:
        self._trainer = trainer

    def to_dict(self) -> dict[str, Any]:
        """See `PartsTrainer.state_dict`."""
        states = {name: part.trainer.state_dict() for name, part in self._trainer.parts.items()}
        models = [state.pop("model") for state in states.values()]
        return {
            "model": models[0],
            "parts": states,
            "schedules": {
                name: None if part.schedule is None else part.schedule.state_dict()
                for name, part in self._trainer.parts.items()
            },
            "batches": self._trainer.batches,
            "record": self._trainer.record.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """See `PartsTrainer.load_state_dict`."""
        for name, part in self._parts_of(state):
            part.trainer.load_state_dict(self._state_of(state, name))
            for target in part.targets:
                target.count_applied(int(part.trainer.record.stats()["applied_steps"]))
            if part.schedule is not None and state["schedules"][name] is not None:
                part.schedule.load_state_dict(state["schedules"][name])
        self._trainer.count_batches(state["batches"])

    def restore_weights(self, state: dict[str, Any]) -> None:
        """Restore model, optimizers and loss scales; see `TrainerState.restore_weights`."""
        for name, part in self._parts_of(state):
            part.trainer.state.restore_weights(self._state_of(state, name))

    def layout(self, prefix: str) -> Mapping[str, Tensor]:
        """Nothing: a job with parts is not sharded."""
        del prefix
        return {}

    def _parts_of(self, state: dict[str, Any]) -> list[tuple[str, PartTrainer]]:
        saved, own = state.get("parts"), self._trainer.parts
        if not isinstance(saved, dict) or list(saved) != list(own):
            names = ", ".join(saved) if isinstance(saved, dict) else "no parts"
            raise ValueError(f"the state has {names}, and the job the parts {', '.join(own)}")
        return list(own.items())

    @staticmethod
    def _state_of(state: dict[str, Any], name: str) -> dict[str, Any]:
        return {**state["parts"][name], "model": state["model"]}


def _config_of(part: Part, parts: Sequence[Part], config: FP16TrainingConfig) -> FP16TrainingConfig:
    """*config* with what *part* states itself."""
    clip, scale = part.max_grad_norm, part.loss_scale
    return replace(
        config,
        max_grad_norm=config.max_grad_norm if clip is None else clip or None,
        loss_scale=config.loss_scale if scale is None else max(scale, config.min_loss_scale),
        keep_fp32=modules_among(config.keep_fp32, parts),
    )


def _joined(
    readings: dict[str, StepReading], lowest_scale: Callable[[Mapping[str, float]], float]
) -> StepReading:
    parts = list(readings.values())
    losses = [part.loss for part in parts if not math.isnan(part.loss)]
    norms = [part.grad_norm for part in parts if not math.isnan(part.grad_norm)]
    return StepReading(
        training_steps=sum(part.training_steps for part in parts),
        overflow_steps=sum(part.overflow_steps for part in parts),
        nonfinite_loss_steps=sum(part.nonfinite_loss_steps for part in parts),
        consecutive_nonfinite_losses=max(part.consecutive_nonfinite_losses for part in parts),
        loss_scale=lowest_scale({name: part.loss_scale for name, part in readings.items()}),
        loss=sum(losses) / len(losses) if losses else math.nan,
        grad_norm=max(norms, default=math.nan),
        parts=readings,
    )

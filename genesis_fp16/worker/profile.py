"""A run that is measured instead of made: collect, build, train a little, decide to publish."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Literal

import psutil
import torch

from genesis_fp16.domain.run_spec import ProfileRequest, RunSpec
from genesis_fp16.worker.collection import Collection
from genesis_fp16.worker.config import loop_options
from infrastructure.agent_contract import (
    Agent,
    Evaluation,
    EvaluationReport,
    Job,
    RunContext,
    Transition,
)
from infrastructure.agent_contract.agent import InsufficientDataError, RecordedTransitions
from infrastructure.agent_contract.run_context import Budget
from infrastructure.events import PrecisionState
from infrastructure.events.profile_report import PhaseCost, ProfileReport, StepCost
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.diagnostics.phase_clock import (
    PhaseClock,
    PhaseTime,
    cpu_seconds,
    peak_bytes,
)
from infrastructure.training.loop import TrainingEnv
from infrastructure.training.model_copy import UncopyableModelError
from infrastructure.training.precision import Precision, device_name, native_half_types
from infrastructure.training.profiling import (
    TrainingTimes,
    measure_steps,
    time_training,
    training_costs,
)
from infrastructure.training.rounds import first_batches

_TAKEN_AT_ONCE = 64  # transitions
_BEFORE_TRAINING = ("read", "encode", "build")


class RunProfile:
    """Measures one run of an agent by phase.

    Args:
        spec: Specification whose folders the run may fill; they are removed afterwards.
        request: How much to measure.
        context: The run's context.

    Attributes:
        context: The context with the time that collecting may take here.
    """

    def __init__(
        self,
        spec: RunSpec,
        request: ProfileRequest,
        agent: Agent,
        context: RunContext,
        device: torch.device,
    ) -> None:
        self._spec, self._request, self._agent = spec, request, agent
        self._device, self._clock = device, PhaseClock()
        began = psutil.Process().create_time()
        self._start = PhaseTime(1, max(0.0, time.time() - began), cpu_seconds(), peak_bytes())
        self._before: dict[str, PhaseTime] = {}
        self._remarks: list[str] = []
        self._collected = self._transitions = 0
        self._announced: int | None = None
        seconds = min(request.collect_seconds or 1.0, spec.budget_seconds)
        self.context = replace(
            context,
            budget=Budget(seconds=seconds, transitions=spec.budget_transitions),
            report_progress=self._report,
        )

    def build(self, collection: Collection, build_job: Callable[[RecordedTransitions], Job]) -> Job:
        """Collect, read and encode as a run does, and build its job.

        Raises:
            InsufficientDataError: There are too few transitions, with those collected here.
        """
        folder = self._spec.agent_folder / "replay"
        clock, buffer = self._clock, collection.buffer(folder)
        if self._request.collect_seconds:
            before = len(buffer.read())
            with clock.phase("collect", memory=True):
                snapshot = collection.snapshot(folder)
            self._collected = len(buffer.read(snapshot)) - before
        else:
            snapshot = buffer.snapshot()
            self._remarks.append("collecting was not measured")
        try:
            with clock.active(), clock.phase("build", memory=True):
                job = build_job(_TimedTransitions(buffer.read(snapshot), clock))
        except InsufficientDataError as error:
            if error.problem:  # more collecting would not help
                raise
            limit = f"{self._request.collect_seconds:g} s were given to collect here"
            why = f"{limit}: raise --collect-seconds, or let the agent train once"
            raise InsufficientDataError(error.what, error.got, error.needed, why) from error
        self._transitions = len(buffer.read(snapshot))
        self._before = clock.take()
        return job

    def train(
        self, job: Job, config: FP16TrainingConfig, precision: PrecisionState
    ) -> ProfileReport:
        """Train *job* for some seconds and measure its step."""
        spec, clock = self._spec, self._clock
        (batch,) = first_batches(job, self._device)
        options = loop_options(spec).model_copy(update={"profile_steps": 0})  # this is the profile
        env = TrainingEnv(
            device=self._device,
            precision=precision,
            config=config,
            options=options,
            folder=spec.run_folder / "checkpoints",
            emit=lambda _event: None,
            commands=tuple,
            best_epoch=spec.run_folder / "best-epoch.pt",
        )
        timed = time_training(
            job,
            clock,
            env,
            seconds=self._request.train_seconds,
            checkpoint_interval_seconds=spec.loop.checkpoint_interval_seconds,
        )
        times, state = timed.times, timed.precision
        publishing = self._publish(job, timed.evaluation, times)
        phases = [*self._costs_before(), *training_costs(times), *publishing]
        steps = self._step_costs(job, config, state)
        return ProfileReport(
            measured_at=time.time(),
            device=str(self._device),
            device_name=device_name(self._device),
            torch_version=torch.__version__,
            threads=torch.get_num_threads(),
            precision=state,
            transitions=self._transitions,
            collected=self._collected,
            rows=next((tensor.shape[0] for tensor in batch.values() if tensor.ndim), 1),
            parameters=sum(
                parameter.numel() for parameter in job.model.parameters() if parameter.requires_grad
            ),
            measured_steps=times.first_steps + times.steady_steps,
            total_steps=times.total_steps,
            epochs=times.epochs,
            bounds=self._bounds(),
            phases=tuple(phases),
            steps=steps,
            remarks=(*self._remarks, *timed.remarks),
        )

    def _report(self, done: int, total: int | None = None, **_fields: object) -> None:
        """Note how much the agent says it will collect."""
        del done
        self._announced = total

    def _costs_before(self) -> list[PhaseCost]:
        """Costs of what comes before the training."""
        costs = [_once("start", self._start)]
        if (spent := self._before.get("collect")) is not None:
            costs.append(self._collecting(spent))
        return costs + [
            _once(name, self._before[name]) for name in _BEFORE_TRAINING if name in self._before
        ]

    def _collecting(self, spent: PhaseTime) -> PhaseCost:
        """Cost of collecting; if it was cut off, what the budget of a run allows at most."""
        cost, spec = _once("collect", spent), self._spec
        if spent.wall_seconds < self.context.budget.seconds:
            return cost
        wanted = min(self._announced or spec.budget_transitions, spec.budget_transitions)
        factor = wanted / self._collected if self._collected else float("inf")
        factor = max(1.0, min(factor, spec.budget_seconds / spent.wall_seconds))
        return cost.model_copy(update={"whole": factor, "at_most": True})

    def _bounds(self) -> Literal["file", "class", "job"]:
        """Where the bounds of a run are set."""
        from infrastructure.world_model_agent import WorldModelAgent

        if self._spec.definition is not None:
            return "file"
        return "class" if isinstance(self._agent, WorldModelAgent) else "job"

    def _publish(self, job: Job, evaluation: Evaluation, times: TrainingTimes) -> list[PhaseCost]:
        """Cost of the decision to publish, if all that it writes is in the agent's folder."""
        from infrastructure.world_model_agent import WorldModelAgent

        agent = self._agent
        if (
            not isinstance(agent, WorldModelAgent)
            or type(agent).publish is not WorldModelAgent.publish
        ):
            self._remarks.append("publishing was not measured: publish() is the agent's own")
            return []
        report = EvaluationReport(
            evaluation=evaluation,
            steps=times.first_steps + times.steady_steps,
            epochs=times.epochs,
        )
        with self._clock.phase("publish", memory=True):
            agent.publish(self.context, job.model.eval(), report)
        return [_once("publish", self._clock.take()["publish"])]

    def _step_costs(
        self, job: Job, config: FP16TrainingConfig, state: PrecisionState
    ) -> tuple[StepCost, ...]:
        """The step in the precision in force, and in a half type that could be chosen instead."""
        effective = Precision(state.effective)
        halves: list[Precision] = [effective] if effective is not Precision.FP32 else []
        native = native_half_types(self._device)
        if not halves and self._device.type == "cpu":
            halves = [Precision.BF16]  # FP16 is emulated
        elif not halves:
            wanted = state.requested if native.get(state.requested) else "bf16"
            halves = [Precision(wanted)] if native.get(wanted) else []
        try:
            return measure_steps(job, self._device, config, halves)
        except (UncopyableModelError, ValueError, torch.OutOfMemoryError) as error:
            self._remarks.append(f"the step was not measured: {error}")
            return ()


def _once(name: str, spent: PhaseTime) -> PhaseCost:
    """Cost of a phase that a run goes through once."""
    return PhaseCost(
        phase=name,
        measured=1,
        wall_seconds=spent.wall_seconds,
        cpu_seconds=spent.cpu_seconds,
        whole=1.0,
        peak_bytes=spent.peak_bytes,
        peak_cuda_bytes=spent.peak_cuda_bytes,
    )


class _TimedTransitions:
    """Transitions whose reading is charged to the phase ``read``, many at a time."""

    def __init__(self, transitions: RecordedTransitions, clock: PhaseClock) -> None:
        self._transitions, self._clock = transitions, clock

    def __iter__(self) -> Iterator[Transition]:
        clock, unread = self._clock, iter(self._transitions)
        while True:
            with clock.phase("read"):
                taken = list(islice(unread, _TAKEN_AT_ONCE))
            if not taken:
                return
            yield from taken

    def __len__(self) -> int:
        with self._clock.phase("read"):
            return len(self._transitions)

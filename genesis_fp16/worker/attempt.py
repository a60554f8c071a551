"""One attempt: what its task works with, and the phases that it goes through."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch

from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.domain.run_spec import RunSpec
from genesis_fp16.plugins.loading import load_agent, validate_settings
from genesis_fp16.worker.channel import CommandInbox, Emit, ProgressReporter, run_logger
from genesis_fp16.worker.collection import Collection
from infrastructure.agent_contract import Agent, RunContext
from infrastructure.agent_contract.run_context import Budget
from infrastructure.events import PrecisionState, SetPrecision
from infrastructure.events.command import Stop
from infrastructure.events.event import Phase, PhaseStarted, Started
from infrastructure.files import remove_abandoned
from infrastructure.training.distributed import Ranks, process_group
from infrastructure.training.precision import resolve_device

T = TypeVar("T")


class WrongDeviceError(GenesisError, ValueError):
    """The device does not exist, or there is not one for each rank."""

    exit_code = os.EX_CONFIG


class StoppedError(Exception):
    """The daemon asked the run to stop while nothing was training."""


class Phases:
    """Announces the phases of one attempt.

    Args:
        emit: Receives the events of the attempt.

    Attributes:
        progress: Reports the progress of the phase under way.
        activity: What is under way, in words that follow "failed while".
    """

    def __init__(self, emit: Emit) -> None:
        self.emit, self.progress = emit, ProgressReporter(emit)
        self.activity = "loading the agent"

    def begin(self, phase: Phase, activity: str) -> None:
        """Announce *phase*, whose *activity* an error report names."""
        self.activity = activity
        self.progress.begin(phase)
        self.emit(PhaseStarted(phase=phase))


class IdleCommands:
    """Commands that arrive while nothing trains.

    Args:
        inbox: Commands for this attempt.
        precision: Precision to start training with if no command changes it.
    """

    def __init__(self, inbox: CommandInbox, precision: PrecisionState) -> None:
        self._inbox, self._precision = inbox, precision

    def execute(self) -> PrecisionState:
        """Execute the commands that have arrived; return the precision to start training with.

        Raises:
            StoppedError: One of the commands was to stop.
        """
        for command in self._inbox.drain():
            if isinstance(command, Stop):
                raise StoppedError(command.reason)
            if isinstance(command, SetPrecision):
                self._precision = command.state
        return self._precision


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One attempt, after its agent is loaded and its ranks have met.

    Attributes:
        spec: Specification of the attempt.
        agent: Agent, loaded.
        context: Context of the run, for the agent.
        device: Device of this rank.
        ranks: Ranks that train together.
        leave_ranks: Function that leaves the process group, so that the other ranks can end.
        phases: Announces what the attempt does.
        inbox: Commands for the attempt.
        idle_commands: The same, for the time in which nothing trains.
        collection: Records and reads transitions.
    """

    spec: RunSpec
    agent: Agent
    context: RunContext
    device: torch.device
    ranks: Ranks
    leave_ranks: Callable[[], None]
    phases: Phases
    inbox: CommandInbox
    idle_commands: IdleCommands
    collection: Collection

    def collection_in(self, context: RunContext) -> Collection:
        """Make a collection that gives *context* to the agent."""
        return _collection(self.agent, context, self.phases, self.idle_commands)

    def on_rank_zero(self, compute: Callable[[], T]) -> T:
        """Call *compute* on rank 0 while the other ranks wait; return its result on every rank.

        Raises:
            StoppedError: *compute* raised it; on every rank. After any other error of rank 0 the
                other ranks fail too, because rank 0 leaves the group.
        """
        results: list[T] = []
        stop_reason = ""
        if self.ranks.is_rank_zero:
            try:
                results.append(compute())
            except StoppedError as error:
                stop_reason = str(error)
        results, stop_reason = self.ranks.broadcast((results, stop_reason))
        if not results:
            raise StoppedError(stop_reason)
        return results[0]


@contextmanager
def begin_attempt(spec: RunSpec, phases: Phases, inbox: CommandInbox) -> Iterator[Attempt]:
    """Load the agent, join the other ranks, and report that the worker has started.

    Raises:
        PluginRefusedError: The agent cannot be loaded, or refuses its settings.
        WrongDeviceError: See there.
    """
    if spec.threads:
        torch.set_num_threads(spec.threads)
    agent = load_agent(spec.entry_point, spec.agent, definition=spec.definition)
    settings = validate_settings(agent, spec.settings)
    for folder in (spec.agent_folder, spec.run_folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        joining = _join(resolve_device(spec.device), spec.processes_per_run)
    except ValueError as error:
        raise WrongDeviceError(str(error)) from error
    phases.activity = "joining the other ranks"
    with ExitStack() as group:
        device, ranks = group.enter_context(joining), Ranks()
        if ranks.is_rank_zero:
            remove_abandoned(spec.run_folder, older_seconds=0.0)
            remove_abandoned(spec.agent_folder)
        context = RunContext(
            run_id=spec.run_id,
            attempt=spec.attempt,
            agent=spec.agent,
            device=str(device),
            seed=spec.seed,
            agent_folder=spec.agent_folder,
            run_folder=spec.run_folder,
            budget=Budget(seconds=spec.budget_seconds, transitions=spec.budget_transitions),
            settings=settings,
            logger=run_logger(phases.emit, spec.agent, spec.run_id),
            report_progress=phases.progress,
            repeats=spec.repeats,
        )
        phases.emit(Started(pid=os.getpid(), device=str(device), torch_version=torch.__version__))
        idle_commands = IdleCommands(inbox, spec.precision)
        yield Attempt(
            spec=spec,
            agent=agent,
            context=context,
            device=device,
            ranks=ranks,
            leave_ranks=group.close,
            phases=phases,
            inbox=inbox,
            idle_commands=idle_commands,
            collection=_collection(agent, context, phases, idle_commands),
        )


def _collection(
    agent: Agent, context: RunContext, phases: Phases, idle_commands: IdleCommands
) -> Collection:
    return Collection(
        agent,
        context,
        phases.progress,
        begin=partial(phases.begin, "collect", "collecting"),
        poll=idle_commands.execute,
    )


def _join(device: torch.device, processes: int) -> AbstractContextManager[torch.device]:
    """Join the process group of *processes* ranks that `genesis_fp16.worker.group` has started.

    Raises:
        ValueError: There are fewer CUDA devices than ranks.
    """
    if processes == 1:
        return nullcontext(device)
    if device.type == "cuda" and processes > torch.cuda.device_count():
        raise ValueError(
            f"{processes} processes need {processes} CUDA devices, but this machine has "
            f"{torch.cuda.device_count()}: lower the agent's PROCESSES_PER_RUN, or set "
            "GENESIS_DEVICE=cpu"
        )
    return process_group(device)

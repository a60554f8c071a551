"""The outcome of an attempt: what its end, or the error that ended it, means for its run."""

from __future__ import annotations

import torch

from genesis_fp16.domain.run_spec import RunSpec
from genesis_fp16.plugins.loading import PluginRefusedError
from genesis_fp16.system.disk import find_disk_full
from genesis_fp16.worker.attempt import Phases, StoppedError, WrongDeviceError
from genesis_fp16.worker.channel import CommandInbox, Emit
from genesis_fp16.worker.exit_report import describe_failure, print_traceback
from genesis_fp16.worker.tasks import do_task
from infrastructure.agent_contract.agent import MisconfiguredError
from infrastructure.events.event import Finished
from infrastructure.events.role_precision import PresetError
from infrastructure.training.diagnostics import HalfPrecisionInModelError
from infrastructure.training.loop import TrainingDivergedError
from infrastructure.training.precision import NoHalfKernelError, UnknownModuleError


def run_attempt(spec: RunSpec, emit: Emit, inbox: CommandInbox) -> Finished:
    """Run the attempt; turn any exception of the plugin, even ``sys.exit``, into a failure."""
    phases = Phases(emit)
    try:
        return Finished(outcome=do_task(spec, phases, inbox))
    except BaseException as error:  # a plugin may raise SystemExit or KeyboardInterrupt
        return _finished_by(error, spec, phases.activity)


def _finished_by(error: BaseException, spec: RunSpec, activity: str) -> Finished:
    """Print *error*, which ended an attempt, to the log; return what it means for the run."""
    if isinstance(error, StoppedError):
        return Finished(outcome="stopped")
    print_traceback(error)
    never_retry = (
        PluginRefusedError,
        WrongDeviceError,
        HalfPrecisionInModelError,
        NoHalfKernelError,
        UnknownModuleError,
        PresetError,
    )
    if isinstance(error, never_retry):
        return Finished(outcome="misconfigured", error=f"{spec.agent} cannot run: {error}")
    message = describe_failure(error, spec, activity)
    diverged = isinstance(error, TrainingDivergedError) and error.in_fp32
    if diverged or isinstance(error, MisconfiguredError):
        return Finished(outcome="misconfigured", error=message)
    if find_disk_full(error) is not None:
        return Finished(outcome="disk_full", error=message)
    if isinstance(error, torch.OutOfMemoryError):
        message += "; train smaller batches, or set GENESIS_DEVICE=cpu"
    return Finished(outcome="failed", error=message)

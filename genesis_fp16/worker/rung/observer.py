"""Keeps a training's last batches and, after a rollback, has its smallest rung searched."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

from genesis_fp16.domain.run_spec import RunSpec
from genesis_fp16.system.processes import die_with_parent
from genesis_fp16.worker.channel import Emit
from genesis_fp16.worker.rung.files import LOG, RungFolder
from genesis_fp16.worker.rung.seen import Seen
from infrastructure.agent_contract import Job
from infrastructure.agent_contract.training_job import Batch
from infrastructure.events import PrecisionState, Role
from infrastructure.events.event import (
    BaseEvent,
    Notice,
    RungCause,
    RungSearched,
)
from infrastructure.events.role_precision import FP32, HalfName, roles_under, usable_preset
from infrastructure.precision_lab.rung.losses import LossHistory
from infrastructure.precision_lab.rung.request import RungRequest
from infrastructure.training.distributed import is_sharded
from infrastructure.training.loop import TrainingDivergedError
from infrastructure.training.parts import Trainer
from infrastructure.training.precision import Precision
from infrastructure.training.precision.devices import has_half_type
from infrastructure.training.precision.roles import RoleForward
from infrastructure.training.rounds import GeneratedRound, kind_of

_BATCHES = 8
_MOST_BATCH_BYTES = 1 << 28  # of all kept batches
_POLL_SECONDS = 0.25
_MOST_SEARCHES = 3  # in an attempt
_STEPS_BETWEEN = 200  # searches that find half precision to agree: other batches may show the fault
_LAST_SECONDS = 30.0  # for a search to end whose training has diverged
_GRACE_SECONDS = 120.0  # beyond the search's own time: imports, and the job to build
_MEMORY_FACTOR = 6  # of the weights: a copy, gradients, and activations
_CUT_SHORT = (
    "the training ended before the search did: a longer one gives it the time, and genesis-fp16 "
    "preflight searches on the first batches"
)
_ROLLED_BACK = ("guard", "floor_policy")


class RungSearch:
    """A `StepObserver` that has the modules to raise searched while the training is in FP32.

    It keeps references to the last batches and reads nothing from the device. Once the guard, or
    the worker itself, has put the training in FP32, it writes weights and batches to the disk
    and starts a process; the process's answer becomes an event.

    Args:
        spec: Specification of the attempt.
        job: Job in training, on rank 0.
        emit: Receives `RungSearched`, and all that `note` is told.
        clock: Monotonic seconds.

    Attributes:
        interval_steps: See `StepObserver`.
    """

    interval_steps = 1

    def __init__(
        self, spec: RunSpec, job: Job, emit: Emit, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._spec, self._job, self._emit, self._clock = spec, job, emit, clock
        self._folder = RungFolder(spec.run_folder)
        self._batches: deque[Batch] = deque(maxlen=_BATCHES)
        self._sized = False
        self._reference: RoleForward | None = None
        self._seen = Seen.of_earlier_attempts(spec)
        self._searched, self._searches = False, 0
        self._again_at = math.inf  # step
        self._process: subprocess.Popen[bytes] | None = None
        self._step, self._next_poll, self._deadline = 0, 0.0, 0.0

    def keep(self, batch: Batch) -> None:
        """Keep *batch*, the next one of the training, as its job has made it."""
        if not self._sized:
            self._sized = True
            tensors = (t for t in batch.values() if isinstance(t, Tensor))
            size = max(1, sum(t.numel() * t.element_size() for t in tensors))
            self._batches = deque(maxlen=max(1, min(_BATCHES, _MOST_BATCH_BYTES // size)))
        self._batches.append(batch)

    def keep_round(self, generated: GeneratedRound) -> None:
        """Keep the reference of a round that was generated just now."""
        self._reference = generated.reference

    def note(self, event: BaseEvent) -> None:
        """Pass *event* of the training on, and take note of what a search can use."""
        self._emit(event)
        if self._seen.note(event):
            self._searches = 0

    def observe(self, trainer: Trainer) -> None:
        """Begin a search if a rollback calls for one, or take its result; see `StepObserver`."""
        if trainer.precision is not Precision.FP32 or trainer.training_steps >= self._again_at:
            self._searched, self._again_at = False, math.inf
        if (
            trainer.precision is Precision.FP32
            and not self._searched
            and trainer.precision_state.reason in _ROLLED_BACK
            and len(self._batches) == self._batches.maxlen
        ):
            self._searched = True
            self._begin(trainer)
        if self._process is not None and self._clock() >= self._next_poll:
            self._next_poll = self._clock() + _POLL_SECONDS
            self._poll(self._process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """End a search under way; of a training that has diverged, wait for what it finds."""
        if isinstance(error, TrainingDivergedError):
            self.finish()
        if self._process is not None:
            self._close()
            self._end("unfinished", _CUT_SHORT)

    def finish(self, check: Callable[[], object] = lambda: None) -> None:
        """Wait a short time for what a search under way finds: it holds for later runs.

        Args:
            check: Called while it waits; its exception ends that.
        """
        last = self._clock() + _LAST_SECONDS
        while self._process is not None and self._clock() < last:
            check()
            time.sleep(_POLL_SECONDS)
            self._poll(self._process)

    def _close(self) -> None:
        if self._process is not None:
            self._kill(self._process)
            self._folder.drop_tensors()
            self._process = None

    def _begin(self, trainer: Trainer) -> None:
        self._step = trainer.training_steps
        if self._searches >= _MOST_SEARCHES:  # no result: the last one's reason stays the last
            made = f"{_MOST_SEARCHES} searches were made in this attempt"
            self._emit(Notice(event="rung_not_searched", fields={"reason": made}))
            return
        if refusal := self._refusal(trainer):
            self._end("unfinished", refusal)
            return
        self._close()
        self._searches += 1
        kind, seen = kind_of(self._job), self._seen
        request = RungRequest(
            half=seen.half or "fp16",
            step=self._step,
            suspects=tuple(seen.suspects),
            history=LossHistory() if kind.roles else seen.histories[""],
            raises_modules=not kind.roles,
            loss_scale=seen.loss_scale,
            other_half=self._other_half(trainer),
            generated=bool(kind.roles) and self._searches == 1,
            reference=self._half_of_reference(kind.role_preset),
            failed=seen.failed_parts([part.name for part in kind.parts]),
            seconds=self._spec.rung_search_seconds,
        )
        try:
            reference = (
                self._reference.state_dict() if self._reference and request.reference else {}
            )
            self._folder.write(self._spec, request, self._job.model, list(self._batches), reference)
            self._process = self._start()
        except OSError as error:
            self._end("unfinished", f"the search could not begin: {error}")
            return
        self._next_poll = self._clock() + _POLL_SECONDS
        self._deadline = self._clock() + request.seconds + _GRACE_SECONDS

    def _half_of_reference(self, preset: str | None) -> str:
        """Types of the reference in half precision; empty if it has none, or is not at hand."""
        if self._reference is None:
            return ""
        half = self._seen.half or "fp16"
        state = PrecisionState(requested=half, effective=half, reason="default")
        of_job = roles_under(state, None if preset is None else usable_preset(preset))
        types = self._seen.reference or str(of_job[Role.REFERENCE])
        return "" if types == str(FP32) else types

    def _other_half(self, trainer: Trainer) -> HalfName | None:
        """The half type that the guard may change to: only where nobody has chosen one."""
        seen = self._seen
        other: HalfName = "bf16" if seen.half == "fp16" else "fp16"
        has = has_half_type(other, trainer.device, cpu_half=trainer.config.cpu_half)
        return other if seen.half_is_default and has and not seen.other_failed else None

    def _refusal(self, trainer: Trainer) -> str:
        """Why no search can be made; empty if one can."""
        kind = kind_of(self._job)
        if kind.parts and kind.log_probs is not None:
            return "a part in FP32 would round otherwise than the rollout whose likelihoods it uses"
        if is_sharded(trainer.model):
            return "the model is sharded, so no rank holds all of it"
        if self._seen.half is None:
            return "the half type to search for is not known yet"
        return self._lack_of_memory()

    def _lack_of_memory(self) -> str:
        parameters = list(self._job.model.parameters())
        if not parameters[0].is_cuda:
            return ""
        needed = _MEMORY_FACTOR * sum(p.numel() * p.element_size() for p in parameters)
        free, _ = torch.cuda.mem_get_info(parameters[0].device)
        if free >= needed:
            return ""
        return f"the device has {free >> 20} MiB free, a search needs {needed >> 20} MiB"

    def _start(self) -> subprocess.Popen[bytes]:
        parent = os.getpid()

        def prepare() -> None:
            os.nice(10)
            die_with_parent(parent)

        with (self._folder.path / LOG).open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "genesis_fp16.worker", str(self._folder.spec_path)],
                stdin=subprocess.PIPE,  # its end would stop the search
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=prepare,  # noqa: PLW1509 -- it calls the kernel alone
            )

    def _poll(self, process: subprocess.Popen[bytes]) -> None:
        code = process.poll()
        if code is None and self._clock() < self._deadline:
            return
        self._process = None
        self._kill(process)
        if code is None:
            self._end("unfinished", "the search did not end within its time and was killed")
            return
        try:
            found = self._folder.result()
        except (OSError, ValueError):
            if self._searches < _MOST_SEARCHES:  # something else may have killed it
                self._again_at = self._step + _STEPS_BETWEEN
            why = f"the search failed, exit code {code}: {self._folder.failure()}"
            self._end("unfinished", why)
            return
        self._folder.drop_tensors()
        may_agree = found.cause == "unexplained" and (found.agrees or found.half_deviation is None)
        if may_agree and self._searches < _MOST_SEARCHES:
            self._again_at = self._step + _STEPS_BETWEEN
        if found.half_type is not None:
            copies = (Role.POLICY, Role.ROLLOUT, Role.REFERENCE)
            roles = {r: found.half_type for r in copies if r in kind_of(self._job).roles}
            found = found.model_copy(update={"roles": roles})
        self._emit(found)

    def _end(self, cause: RungCause, reason: str) -> None:
        self._folder.drop_tensors()
        self._emit(RungSearched(step=self._step, cause=cause, reason=reason))

    @staticmethod
    def _kill(process: subprocess.Popen[bytes]) -> None:
        """Kill *process* unless it has ended, and close the pipe to it."""
        process.send_signal(signal.SIGKILL)
        process.communicate()

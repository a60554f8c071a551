"""What programs do on inputs that the tests do not contain."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

from agents.se_darwin.certainty.inputs import ProgramInput
from agents.se_darwin.sandbox import Execution, Output, Sandbox
from agents.se_darwin.tasks import RepairTask

_BATCH = 2  # programs between two calls of `stop`
_MAX_RESTARTS = 2
_MOST_TIMES = 2.0  # the limits of the tests that a replay may have
_LEAST_SECONDS = 0.1  # wall-clock time of a replay, also at the deadline

_TRUTHS = {"True": "1", "False": "0"}

Behaviour = tuple[Output | None, ...]
"""Result by input, for the first inputs that were run; None where the program did not end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """Runs programs on inputs, within the task's limits.

    Attributes:
        task: The repair task.
        sandbox: Sandbox in which the programs run.
        inputs: The inputs.
        recorded: Number of calls that the tests make; they set the time limits.
        deadline: When no program may run any more, by `time.monotonic`.
    """

    task: RepairTask
    sandbox: Sandbox
    inputs: Sequence[ProgramInput]
    recorded: int
    deadline: float = inf

    def run(
        self, sources: Sequence[str], stop: Callable[[], bool] = lambda: False
    ) -> list[Behaviour]:
        """Return the behaviour of each of *sources*; of fewer if *stop* returns True before.

        A program that hangs is started again after the input on which it did, a few times; its
        behaviour is shorter if inputs remain.
        """
        behaviours: list[Behaviour] = []
        for start in range(0, len(sources), _BATCH):
            if stop():
                break
            batch = sources[start : start + _BATCH]
            executions = self._replay(batch, self.inputs)
            for source, execution in zip(batch, executions, strict=True):
                behaviours.append(self._completed(source, execution, stop))
        return behaviours

    def _completed(self, source: str, execution: Execution, stop: Callable[[], bool]) -> Behaviour:
        """Return the results of *execution*, and of restarts after inputs on which it hung."""
        outputs = list(execution.outputs[: _run_inputs(execution)])
        for _ in range(_MAX_RESTARTS):
            if len(outputs) == len(self.inputs) or stop():
                break
            [rest] = self._replay([source], self.inputs[len(outputs) :])
            outputs += rest.outputs[: _run_inputs(rest)]
        if stop() and outputs and outputs[-1] is None:  # it had less than its time
            outputs.pop()
        return tuple(outputs)

    def _replay(self, sources: Sequence[str], inputs: Sequence[ProgramInput]) -> list[Execution]:
        factor = min(_MOST_TIMES, max(1.0, len(inputs) / max(1, self.recorded)))
        limits = (self.task.limits or self.sandbox.limits).times(factor)
        left = max(_LEAST_SECONDS, self.deadline - time.monotonic())
        limits = replace(limits, wall_seconds=min(limits.wall_seconds, left))
        calls = [program_input.call for program_input in inputs]
        return self.task.replay(self.sandbox, sources, calls, limits=limits)


def _run_inputs(execution: Execution) -> int:
    """Number of inputs up to the first one on which the program did not end, that one included."""
    outputs = execution.outputs
    return outputs.index(None) + 1 if None in outputs else len(outputs)


def key(output: Output | None) -> tuple[str, str, str]:
    """What counts for the comparison of two programs on an input.

    ``True`` counts as 1 and ``False`` as 0: a test that compares them cannot tell them apart.
    """
    if output is None:
        return "unfinished", "", ""
    if output.kind == "raise":
        return "raise", output.text, ""
    return output.kind, _TRUTHS.get(output.text, output.text), output.arguments


def is_opaque(output: Output | None) -> bool:
    """Whether the result is one that cannot be compared, such as a function."""
    return output is not None and output.kind == "strange"

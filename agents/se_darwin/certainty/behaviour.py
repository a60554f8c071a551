"""What programs do on inputs that the tests do not contain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agents.se_darwin.certainty.inputs import ProgramInput
from agents.se_darwin.sandbox import Execution, Output, Sandbox
from agents.se_darwin.tasks import RepairTask

_BATCH = 4
_MAX_RESTARTS = 2
_MOST_TIMES = 10.0

Behaviour = tuple[Output | None, ...]
"""Result by input; None where the program did not end in time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """Runs programs on inputs, within the task's limits.

    Attributes:
        task: The repair task.
        sandbox: Sandbox in which the programs run.
        inputs: The inputs.
        recorded: Number of calls that the tests make; they set the time limits.
    """

    task: RepairTask
    sandbox: Sandbox
    inputs: Sequence[ProgramInput]
    recorded: int

    def run(
        self, sources: Sequence[str], stop: Callable[[], bool] = lambda: False
    ) -> list[Behaviour]:
        """Return the behaviour of each of *sources*; of fewer if *stop* returns True before.

        A program that hangs is started again after the input on which it did, a few times.
        """
        found: list[Behaviour] = []
        for start in range(0, len(sources), _BATCH):
            if stop():
                break
            batch = sources[start : start + _BATCH]
            executions = self._replay(batch, self.inputs)
            for source, execution in zip(batch, executions, strict=True):
                outputs = list(execution.outputs)
                for _ in range(_MAX_RESTARTS):
                    after = _finished(outputs) + 1
                    if after >= len(outputs) or stop():
                        break
                    [rest] = self._replay([source], self.inputs[after:])
                    outputs[after:] = rest.outputs
                found.append(tuple(outputs))
        return found

    def _replay(self, sources: Sequence[str], inputs: Sequence[ProgramInput]) -> list[Execution]:
        factor = min(_MOST_TIMES, max(1.0, len(inputs) / max(1, self.recorded)))
        limits = (self.task.limits or self.sandbox.limits).times(factor)
        calls = [each.call for each in inputs]
        return self.task.replay(self.sandbox, sources, calls, limits=limits)


def _finished(outputs: Sequence[Output | None]) -> int:
    """Number of outputs up to the last one that is known."""
    for number in range(len(outputs), 0, -1):
        if outputs[number - 1] is not None:
            return number
    return 0


def key(output: Output | None) -> tuple[str, str, str]:
    """What counts for the comparison of two programs on an input."""
    if output is None:
        return "unfinished", "", ""
    if output.kind == "raise":
        return "raise", output.text, ""
    return output.kind, output.text, output.arguments

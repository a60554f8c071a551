"""``python -m benchmarks.agents.host``: several attempts in one process, the work of a round.

The attempts are those of a daemon's workers; only their start-up is shared. With ``--together``
their steps are taken by a fleet, too; else they run one after the other.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from genesis_fp16.domain.run import Outcome
from genesis_fp16.domain.run_spec import RunSpec
from genesis_fp16.worker.attempt_runner import AttemptRunner
from genesis_fp16.worker.channel import CommandInbox, configure_worker_logging
from genesis_fp16.worker.compiler_import import defer_compiler_import
from infrastructure.events import EventWriter
from infrastructure.events.event import Finished
from infrastructure.fleet import Standing, Trainings
from infrastructure.training.loop import Steps, take_steps


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the attempts whose specifications the arguments name; the first error ends all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agents.host", description=__doc__)
    parser.add_argument("specs", nargs="+", type=Path)
    parser.add_argument("--together", action="store_true")
    options = parser.parse_args(arguments)
    configure_worker_logging()
    defer_compiler_import()
    specs = [RunSpec.model_validate_json(path.read_bytes()) for path in options.specs]
    if options.together:
        with ExitStack() as stack:
            _run_together({each.agent: stack.enter_context(_attempt(each)) for each in specs})
    else:
        for spec in specs:
            with _attempt(spec) as steps:
                take_steps(steps)
    return 0


@contextmanager
def _attempt(spec: RunSpec) -> Iterator[Steps[Outcome]]:
    """Start the attempt of *spec*; its events go where a worker writes them."""
    with EventWriter(spec.events_path) as events:
        runner = AttemptRunner(spec, events, CommandInbox(events))
        runner.start()
        yield runner.steps()
        events(Finished(outcome="done"))


def _run_together(attempts: dict[str, Steps[Outcome]]) -> None:
    """Advance all *attempts* step by step.

    Raises:
        BaseException: What the first attempt that failed raised.
    """

    def tell(name: str, standing: Standing) -> None:
        print(f"{name}: {standing.reason}", file=sys.stderr)

    trainings = Trainings[Outcome](tell)
    for name, steps in attempts.items():
        trainings.add(name, steps)
    while trainings:
        for ended in trainings.advance().values():
            if ended.error is not None:
                raise ended.error


if __name__ == "__main__":
    raise SystemExit(main())

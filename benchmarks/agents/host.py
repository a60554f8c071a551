"""``python -m benchmarks.agents.host``: several attempts in one process, the work of a round.

The attempts are those of a daemon's workers; they run one after the other, and only their start-up
is shared.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from genesis_fp16.domain.run_spec import RunSpec
from genesis_fp16.worker.attempt import Phases
from genesis_fp16.worker.channel import CommandInbox, configure_worker_logging
from genesis_fp16.worker.tasks import do_task
from infrastructure.events import EventWriter
from infrastructure.events.event import Finished
from infrastructure.torch_internals.compiler_import import defer_compiler_import


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the attempts whose specifications the arguments name; the first error ends all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agents.host", description=__doc__)
    parser.add_argument("specs", nargs="+", type=Path)
    options = parser.parse_args(arguments)
    configure_worker_logging()
    defer_compiler_import()
    specs = [RunSpec.model_validate_json(path.read_bytes()) for path in options.specs]
    for spec in specs:
        _run(spec)
    return 0


def _run(spec: RunSpec) -> None:
    """Run the attempt of *spec*; its events go where a worker writes them."""
    with EventWriter(spec.events_path) as events:
        events(Finished(outcome=do_task(spec, Phases(events), CommandInbox(events))))


if __name__ == "__main__":
    raise SystemExit(main())

"""A worker that has imported torch before its run is due: it waits for its specification.

``python -m genesis_fp16.worker.spare PARENT_PID REPORT`` imports what every attempt needs, and no
agent. It writes the files that it has imported to the descriptor *REPORT*, as a JSON list in one
line, and reads one line from stdin: a JSON object with the paths of the ``spec`` and of the
``log``. From then on it is the worker of that attempt: stdin holds its commands, and its output,
also what the imports have printed, is in the log. Until then it ends with its parent.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from genesis_fp16.system.processes import die_with_parent, outlive_parent
from genesis_fp16.worker.collector_pause import collector_paused

_MAPPED = Path("/proc/self/maps")  # shared libraries among others; Linux only


def wait_for_run(report: int) -> Sequence[str]:
    """Report the imported files, wait for a run, and take on its output.

    Args:
        report: Descriptor to report on; it is closed.

    Returns:
        Arguments of the worker: the path of its specification; empty if no run comes.
    """
    with os.fdopen(report, "w") as file:
        file.write(json.dumps(imported_files()) + "\n")
    line = _read_line()
    if not line.endswith(b"\n"):  # the parent has closed stdin
        return ()
    outlive_parent()  # a worker checkpoints when the daemon is gone
    order = json.loads(line)
    _write_output_to(order["log"])
    return (order["spec"],)


def imported_files() -> list[str]:
    """Absolute paths of the modules and shared libraries in this process."""
    paths = {vars(module).get("__file__") for module in list(sys.modules.values())}
    with suppress(OSError):
        paths |= {f"/{line.partition('/')[2]}" for line in _MAPPED.read_text().splitlines()}
    # Only files count: a mapping may be anonymous, and torch has modules with made-up names.
    return sorted(path for path in paths if path and path.startswith("/") and Path(path).is_file())


def _read_line() -> bytes:
    """One line of stdin; not a byte more, since commands follow."""
    line = bytearray()
    while not line.endswith(b"\n") and (byte := os.read(0, 1)):
        line += byte
    return bytes(line)


def _write_output_to(log: str) -> None:
    """Let stdout and stderr append to the file *log*, which begins with the output so far."""
    target = os.open(log, os.O_WRONLY | os.O_APPEND)
    with suppress(OSError):  # the disk may be full
        size = os.lseek(1, 0, os.SEEK_END)
        os.write(target, os.pread(1, size, 0))
    for number in (1, 2):
        os.dup2(target, number)
    os.close(target)


def _load_worker() -> Callable[[], None]:
    import infrastructure.training.diagnostics.phase_clock
    import infrastructure.world_model_agent.publication  # noqa: F401 -- most agents need both
    from genesis_fp16.worker.attempt_process import main as run

    return run


def main(load: Callable[[], Callable[[], None]] = _load_worker) -> None:
    """Import, wait, and run the attempt; *load* imports and returns what runs it."""
    parent, report = map(int, sys.argv[1:3])
    die_with_parent(parent)
    with collector_paused():
        run = load()
    if arguments := wait_for_run(report):
        sys.argv[1:] = arguments
        run()


if __name__ == "__main__":
    main()

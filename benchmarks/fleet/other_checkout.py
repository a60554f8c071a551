"""The trainers of another checkout, such as an older commit, in a process of their own.

Run as a program, it is that process: it imports the other checkout's `benchmarks.fleet`, takes as
many steps as a line of its input says, and answers with the CPU seconds.
"""

from __future__ import annotations

import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

UNCOUNTED_STEPS = 2
"""Steps before each timed block: the loop before has emptied the caches, which a training of
thousands of steps in a row does not meet."""


class OtherCheckout:
    """Steps the members of a subject one after the other, with the trainer of another checkout.

    Args:
        folder: Root of the checkout, such as one made by ``git worktree add``.
        subject: Name of the subject, with its number of rows.
        members: Number of members.
        precision: Precision of all of them.

    Raises:
        RuntimeError: The process could not be prepared; its own message is on stderr.
    """

    def __init__(
        self, folder: Path, subject: tuple[str, int], members: int, precision: str
    ) -> None:
        self._folder, (name, rows) = folder.resolve(), subject
        arguments = [str(self._folder), name, str(rows), str(members), precision]
        program = [sys.executable, "-P", __file__, *arguments]
        self._process = subprocess.Popen(
            ["/usr/bin/env", f"PYTHONPATH={self._folder}", *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def seconds(self, steps: int) -> float:
        """Take *steps* of every member; return the process's CPU seconds."""
        if self._process.stdin is not None:
            print(steps, file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> float:
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            self._process.communicate()
            raise RuntimeError(f"the trainers of {self._folder} ended: see the message above")
        return float(line)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the process."""
        self._process.communicate()


def _serve(folder: str, name: str, rows: str, members: str, precision: str) -> None:
    found = find_spec("infrastructure.training")
    where = None if found is None else found.origin
    if where is None or not Path(where).is_relative_to(folder):
        raise SystemExit(f"{where} would be imported, not the trainer of {folder}")
    import gc

    import torch

    from benchmarks.fleet.loops import OneByOne
    from benchmarks.fleet.models import subjects
    from infrastructure.training import Precision

    torch.set_num_threads(1)
    (subject,) = (each for each in subjects() if (each.name, each.rows) == (name, int(rows)))
    loop = OneByOne(subject, int(members), Precision(precision))
    loop.step()
    gc.disable()
    print(0.0, flush=True)
    for line in sys.stdin:
        for _ in range(UNCOUNTED_STEPS):
            loop.step()
        begun = time.process_time()
        for _ in range(int(line)):
            loop.step()
        print(time.process_time() - begun, flush=True)


if __name__ == "__main__":
    _serve(*sys.argv[1:])

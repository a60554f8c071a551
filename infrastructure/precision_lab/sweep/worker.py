"""The process in which cells run, one after the other: ``python -P -m``, started by a sweep.

Its argument is the descriptor of a connection to the sweep. When the connection closes the sweep
is gone, and the process ends at once, in the middle of a step. It holds the sweep's lock as long as
it lives, because it inherits it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

import torch

from infrastructure.agent_contract.agent import MisconfiguredError
from infrastructure.precision_lab.ppo.settings import CellSettings
from infrastructure.precision_lab.results import CellSummary
from infrastructure.precision_lab.sweep.cell_run import (
    CellTask,
    RefusedError,
    Task,
    prepare_seed,
    run_cell,
)


def serve(connection: Connection) -> None:
    """Answer each task, which comes with the settings, with its steps' numbers and its result."""
    torch.set_num_threads(1)  # small models lose more than they gain by a second one
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all; the sweep decides
    received = SimpleQueue[Any]()
    threading.Thread(target=_receive, args=(connection, received), daemon=True).start()
    while True:
        task, settings = received.get()
        connection.send(_result(task, settings, connection.send))


def _result(
    task: Task, settings: CellSettings, on_step: Callable[[int], None]
) -> CellSummary | str | RefusedError:
    try:
        if isinstance(task, CellTask):
            return run_cell(task, settings, on_step)
        weights, seed = task
        return prepare_seed(weights, settings, seed)
    except MisconfiguredError as error:
        return RefusedError(str(error))
    except OSError as error:
        return RefusedError(f"{error}; the cells that have ended are kept")


def _receive(connection: Connection, received: SimpleQueue[Any]) -> None:
    with suppress(EOFError, OSError):
        while True:
            received.put(connection.recv())
    os._exit(0)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))

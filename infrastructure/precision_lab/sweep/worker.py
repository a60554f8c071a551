"""The process in which cells run, one after the other: ``python -P -m``, started by a sweep.

It reads one JSON request a line from its standard input and answers on its standard output. When
its input ends the sweep is gone, and it ends at once, in the middle of a step. It holds the sweep's
lock as long as it lives, because it inherits it.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from pathlib import Path
from typing import TextIO

import torch

from infrastructure.agent_contract.agent import MisconfiguredError
from infrastructure.files import json_text
from infrastructure.precision_lab.errors import LabError
from infrastructure.precision_lab.ppo.settings import CellSettings
from infrastructure.precision_lab.sweep.cell_run import CellTask, prepare_seed, run_cell


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answer the requests to prepare a seed or to run a cell; the first line has the settings."""
    torch.set_num_threads(1)  # small models lose more than they gain by a second one
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all; the sweep decides
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(requests, lines), daemon=True).start()

    def answer(**content: object) -> None:
        answers.write(json_text(content) + "\n")
        answers.flush()

    settings = CellSettings(**json.loads(lines.get()))
    while True:
        request = json.loads(lines.get())
        weights, folder = Path(request.pop("weights")), request.pop("folder", None)
        try:
            if folder is None:
                answer(done=prepare_seed(weights, settings, **request))
            else:
                task = CellTask(folder=Path(folder), weights=weights, **request)
                summary = run_cell(task, settings, on_step=lambda number: answer(step=number))
                answer(done=summary.category)
        except (LabError, MisconfiguredError) as error:
            answer(refused=str(error))
        except OSError as error:
            answer(refused=f"{error}; the cells that have ended are kept")


def _read(requests: TextIO, lines: queue.SimpleQueue[str]) -> None:
    for line in requests:
        lines.put(line)
    os._exit(0)


if __name__ == "__main__":
    own = os.fdopen(os.dup(1), "w")  # what libraries print must not mix with the answers
    os.dup2(2, 1)
    serve(sys.stdin, own)

"""The end of a worker: why it failed, even on a full disk, and no process left behind.

Output of plugins and log lines that find no room on the disk are dropped: they must not end a run.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

import psutil

from genesis_fp16.domain.run_spec import RunSpec
from genesis_fp16.plugins.loading import describe_error
from genesis_fp16.system.disk import DISK_FULL, find_disk_full
from genesis_fp16.system.processes import kill_descendants

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class _RoomlessOutput(io.FileIO):
    """An output file; what a full disk refuses is dropped."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            return memoryview(data).nbytes


def drop_output_on_full_disk() -> None:
    """Let writing to stdout and stderr succeed while their disk is full: the text is lost."""
    for name, number in (("stdout", 1), ("stderr", 2)):
        file = io.BufferedWriter(_RoomlessOutput(number, "wb", closefd=False))
        lines = io.TextIOWrapper(file, "utf-8", "backslashreplace", line_buffering=name == "stderr")
        setattr(sys, name, lines)


def print_traceback(error: BaseException) -> None:
    """Print *error* to stderr, unless its file cannot be written."""
    with suppress(OSError):
        traceback.print_exception(error)


def describe_failure(error: BaseException, spec: RunSpec, activity: str) -> str:
    """One paragraph: what failed, why, and where to look or what to do.

    The *activity* that was under way is in words that follow "failed while".
    """
    if (full := find_disk_full(error)) is not None:
        free = psutil.disk_usage(str(spec.attempt_folder)).free >> 20
        return (
            f"{spec.agent} failed while {activity}: the disk is full: {full}. The disk of "
            f"{spec.attempt_folder} has {free} MiB free: free some space there (see also "
            "quotas), or move GENESIS_HOME to a larger disk. The run continues from its last "
            "checkpoint when there is room"
        )
    log = spec.attempt_folder / "worker.log"
    cause = f"{spec.agent} failed while {activity}: {describe_error(error)}"
    return f"{cause[:1500]}. The traceback is in {log}"


def exit_process(code: int) -> NoReturn:
    """End this process with *code*, and with it the processes and threads of plugin code."""
    kill_descendants()
    with suppress(OSError):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)

"""The end of a worker: why it failed, even on a full disk, and no process left behind."""

from __future__ import annotations

import errno
import logging
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import suppress
from typing import NoReturn

import psutil

from genesis_fp16.domain.run_spec import RunSpec
from genesis_fp16.plugins.loading import describe_error
from genesis_fp16.system.processes import kill_descendants

_DISK_FULL = {errno.ENOSPC, errno.EDQUOT}


def print_traceback() -> None:
    """Print the exception under way to stderr, unless its file cannot be written."""
    with suppress(OSError):
        traceback.print_exc()


def describe_failure(error: BaseException, spec: RunSpec, activity: str) -> str:
    """One paragraph: what failed, why, and where to look or what to do.

    The *activity* that was under way is in words that follow "failed while".
    """
    errors = (each for each in _chain(error) if isinstance(each, OSError))
    full = next((each for each in errors if each.errno in _DISK_FULL), None)
    if full is not None:
        free = psutil.disk_usage(str(spec.attempt_folder)).free >> 20
        return (
            f"{spec.agent} failed while {activity}: the disk is full: {full}. The disk of "
            f"{spec.attempt_folder} has {free} MiB free: free some space there (see also "
            "quotas), or move GENESIS_HOME to a larger disk"
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


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield *error* and its causes."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__

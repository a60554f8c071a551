"""Errors of the lab's commands: one message for each."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from genesis_fp16.domain.errors import GenesisError


class LabFailedError(GenesisError):
    """A command of the lab cannot do what it was asked to."""

    exit_code = os.EX_DATAERR


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn errors that name a remedy, of the library and the disk, into one message.

    Raises:
        LabFailedError: One of them was raised inside.
    """
    from infrastructure.agent_contract.agent import MisconfiguredError
    from infrastructure.events.role_precision import PresetError
    from infrastructure.precision_lab import LabError

    try:
        yield
    except (LabError, MisconfiguredError, PresetError) as error:
        raise LabFailedError(str(error)) from error
    except OSError as error:
        kept = "; free some space and repeat the command: finished results are kept"
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise LabFailedError(f"{error}{kept if full else ''}") from error

"""``genesis-fp16 lab``: the precision lab. Every command imports what it needs when called."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from genesis_fp16.domain.errors import GenesisError

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def options() -> None:
    """Freeze a piece of training, repeat it in any precision, find what half precision costs."""


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
    except (LabError, MisconfiguredError, PresetError, OSError) as error:
        raise LabFailedError(str(error)) from error

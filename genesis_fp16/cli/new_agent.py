"""``genesis-fp16 agents new``: the distribution of a new agent, made from a template."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from genesis_fp16.cli.settings import load_command_settings
from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.plugins.discovery import agent_entry_points
from infrastructure.agent_contract.agent import AGENT_NAME
from infrastructure.events.plain_text import plain

TEMPLATE = Path(__file__).with_name("agent_template")


class TemplateUnavailableError(GenesisError, RuntimeError):
    """The library that fills in the template is not installed."""

    exit_code = os.EX_CONFIG

    def __init__(self) -> None:
        super().__init__("agents new needs copier: pip install 'genesis-fp16[new]'")


class FolderNotWrittenError(GenesisError, OSError):
    """The distribution could not be written."""

    exit_code = os.EX_CANTCREAT


def new(
    name: Annotated[str, typer.Argument(help="Name of the agent.")],
    folder: Annotated[
        Path | None, typer.Option(help="New folder; by default NAME in the working folder.")
    ] = None,
    description: Annotated[str, typer.Option(help="What the agent learns, in one line.")] = "",
) -> None:
    """Write a Python distribution with an agent that runs as it is, to be replaced by yours."""
    if not AGENT_NAME.fullmatch(name):
        raise typer.BadParameter(f"{plain(name)!r} must match {AGENT_NAME.pattern}")
    if name in agent_entry_points(load_command_settings().location.home.absolute()):
        raise typer.BadParameter(f"an agent named {name!r} is known: choose another name")
    target = (folder or Path(name)).absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise typer.BadParameter(f"{target} exists and is not empty: name another with --folder")
    try:
        from copier import run_copy
    except ImportError:
        raise TemplateUnavailableError from None
    answers = {"name": name}
    if description:
        answers["description"] = " ".join(plain(description).split())
    try:
        run_copy(str(TEMPLATE), target, data=answers, defaults=True, quiet=True)
    except OSError as error:
        raise FolderNotWrittenError(f"{target} cannot be written: {error.strerror}") from error
    typer.echo(f"written to {target}: see README.md there")

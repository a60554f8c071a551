"""The program ``genesis-fp16``. To start fast, a command imports heavy modules when called."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

import genesis_fp16
from genesis_fp16.cli import (
    agents,
    config,
    daemon,
    executors,
    lab,
    minari,
    models,
    precision,
    records,
    runs,
)
from genesis_fp16.cli.arguments import check_utf8
from genesis_fp16.cli.attach import attach, detach
from genesis_fp16.cli.backup import backup, restore
from genesis_fp16.cli.doctor import doctor
from genesis_fp16.cli.plugin_commands import ProgramGroup
from genesis_fp16.cli.profile import profile
from genesis_fp16.cli.verl_overrides import verl_overrides
from genesis_fp16.domain.errors import GenesisError
from infrastructure.agent_contract.command import CommandError
from infrastructure.events.plain_text import plain

app = typer.Typer(
    name="genesis-fp16",
    cls=ProgramGroup,
    help="Keeps the world models of agents trained in half precision, safely.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)
app.command("serve")(daemon.serve)
app.command("run")(daemon.run)
app.command("predict-server")(daemon.predict_server)
app.add_typer(agents.app, name="agents")
app.command("preflight")(agents.preflight)
app.command("profile")(profile)
app.command("doctor")(doctor)
app.command("backup")(backup)
app.command("restore")(restore)
app.command("attach")(attach)
app.command("detach")(detach)
app.command("verl-overrides")(verl_overrides)
app.add_typer(runs.app, name="runs")
app.add_typer(models.app, name="models")
app.add_typer(records.app, name="records")
app.add_typer(precision.app, name="precision")
app.add_typer(executors.app, name="executors")
app.add_typer(config.app, name="config")
app.add_typer(lab.app, name="lab")
app.add_typer(minari.app, name="minari")


def main() -> None:
    """Run the program: an error is one message on stderr and its exit code."""
    try:
        check_utf8(sys.argv[1:])
        app()
    except GenesisError as error:
        sys.stderr.write(f"genesis-fp16: {error}\n")
        sys.exit(error.exit_code)
    except CommandError as error:  # the text of a plugin
        sys.stderr.write(f"genesis-fp16: {' '.join(plain(str(error)).splitlines())}\n")
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the reader, for example head, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"genesis-fp16 {genesis_fp16.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print it."),
    ] = False,
) -> None:
    """Keeps the world models of agents trained in half precision, safely."""


if __name__ == "__main__":
    main()

"""The command line. Starts fast: what is heavy is imported by the command that needs it."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from typing import Annotated

import typer

import genesis_fp16
from genesis_fp16.cli import explain as cli_explain
from genesis_fp16.cli import precision as cli_precision
from genesis_fp16.cli import preflight as cli_preflight
from genesis_fp16.cli import runs as cli_runs
from genesis_fp16.cli.names import check_words
from genesis_fp16.cli.output import JsonFlag, print_json, print_table
from genesis_fp16.cli.plugin_commands import ProgramGroup
from genesis_fp16.cli.settings import settings_to_start
from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.plugins.loading import is_secret
from genesis_fp16.settings import load_settings
from infrastructure.agent_contract.command import CommandError

app = typer.Typer(
    name="genesis-fp16",
    cls=ProgramGroup,
    help="Keeps the world models of a fleet of agents trained in half precision, safely.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)
config_app = typer.Typer(help="The settings in force.", no_args_is_help=True)
app.add_typer(cli_runs.app, name="runs")
app.add_typer(cli_precision.app, name="precision")
cli_precision.app.command("explain")(cli_explain.explain)
app.add_typer(config_app, name="config")
app.command("preflight")(cli_preflight.preflight)


def main() -> None:
    """Run the console script: an error is one message on stderr and its exit code."""
    try:
        check_words(sys.argv[1:])
        app()
    except (GenesisError, CommandError) as error:
        sys.stderr.write(f"genesis-fp16: {error}\n")
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"genesis-fp16 {genesis_fp16.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print it."),
    ] = False,
) -> None:
    """Keeps the world models of a fleet of agents trained in half precision, safely."""


@app.command()
def serve() -> None:
    """Start the daemon in the foreground; Ctrl-C checkpoints and stops."""
    settings = settings_to_start()
    from genesis_fp16.daemon.daemon import serve as serve_until_stopped
    from genesis_fp16.store.database import failures_told

    with failures_told(settings):
        code = serve_until_stopped(settings)
    raise typer.Exit(code)


@app.command()
def run(agent: str, as_json: JsonFlag = False) -> None:
    """Do one run of AGENT now, in the foreground; through the daemon if one serves."""
    settings = settings_to_start()
    from genesis_fp16.daemon.foreground import run_once
    from genesis_fp16.store.database import failures_told

    with failures_told(settings):
        code = run_once(settings, agent)
    if as_json:
        with cli_runs.existing_store(settings) as store:
            runs = store.runs(agent, limit=1) if store is not None else []
        print_json(asdict(runs[0]) if runs else None)
    raise typer.Exit(code)


@app.command()
def agents(as_json: JsonFlag = False) -> None:
    """Load every installed agent once, in a child process, and say which are usable."""
    settings = load_settings()
    from genesis_fp16.domain.schedule import effective_schedule
    from genesis_fp16.plugins.probe import probe_agents

    plugins = probe_agents(settings)
    rows = []
    for plugin in plugins:
        schedule = None
        if plugin.schedule is not None:
            schedule = str(
                effective_schedule(settings.for_agent(plugin.name).schedule, plugin.schedule)
            )
        rows.append({**asdict(plugin), "schedule": schedule})
    if as_json:
        print_json(rows)
        return
    names = ("name", "state", "schedule", "distribution", "version", "entry_point")
    print_table(names, [[row[name] for name in names] for row in rows])
    for plugin in plugins:
        if plugin.reason:
            typer.echo(f"\n{plugin.name} is {plugin.state}: {plugin.reason}")


@app.command()
def doctor(as_json: JsonFlag = False) -> None:
    """Look at everything the daemon needs; exit code 1 if something must be mended."""
    from genesis_fp16.cli.doctor import examine

    findings = examine()
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        print_table(
            ["", "check", "found", "remedy"],
            [[each.verdict, each.check, each.found, each.remedy] for each in findings],
        )
    raise typer.Exit(1 if any(each.verdict == "fail" for each in findings) else 0)


@config_app.command("show")
def show_config(as_json: JsonFlag = False) -> None:
    """Show every setting in force and where it comes from; secrets are redacted."""
    rows = [
        {"name": name, "value": "***" if _is_secret(name) else value, "source": source}
        for name, value, source in load_settings().describe()
    ]
    if as_json:
        print_json(rows)
    else:
        print_table(["setting", "value", "source"], [list(row.values()) for row in rows])


def _is_secret(variable: str) -> bool:
    return is_secret(variable.partition("__SETTINGS__")[2])


if __name__ == "__main__":
    main()

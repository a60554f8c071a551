"""``genesis-fp16 runs``: a list of the runs, and everything known about one of them."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from genesis_fp16.cli.arguments import agents_of_runs, check_agent_name
from genesis_fp16.cli.output import JsonFlag, duration, moment, print_json, print_table
from genesis_fp16.cli.settings import load_command_settings
from genesis_fp16.cli.store import open_existing_store
from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.runs.run_folder import describe_removal
from genesis_fp16.settings import Settings
from infrastructure.events.plain_text import LONGEST

if TYPE_CHECKING:
    from genesis_fp16.domain.attempt import Attempt

app = typer.Typer(help="Past and present runs, newest first.")


class UnknownRunError(GenesisError, LookupError):
    """No run has this id."""


@app.callback(invoke_without_command=True)
def list_runs(
    context: typer.Context,
    agent: Annotated[str | None, typer.Option(help="Only runs of this agent.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Most runs to list.")] = 20,
    as_json: JsonFlag = False,
) -> None:
    """List runs, newest first."""
    if context.invoked_subcommand is not None:
        return
    settings = load_command_settings().location
    with open_existing_store(settings) as store:
        check_agent_name(agent, store)
        runs = [] if store is None else store.runs(agent, limit)
        others = sorted(agents_of_runs(store)) if store is not None and not runs else []
    if as_json:
        print_json([asdict(run) for run in runs])
    elif others:
        typer.echo(f"no runs of {agent} in {settings.home}; there are runs of {', '.join(others)}")
    elif not runs:
        typer.echo(f"no runs recorded in {settings.home}: start genesis-fp16 serve")
    else:
        print_table(
            ["run", "agent", "state", "created", "trained for", "steps", "published", "why"],
            [
                [
                    *(run.id, run.agent, run.state, moment(run.created_at)),
                    *(duration(run.active_seconds), run.steps),
                    {True: "yes", False: "no", None: ""}[run.published],
                    run.error or run.reason,
                ]
                for run in runs
            ],
        )


@app.command("show")
def show_run(run_id: str, as_json: JsonFlag = False) -> None:
    """Show one run: its attempts and their events, its precision, the paths of its logs."""
    settings = load_command_settings().location
    with open_existing_store(settings) as store:
        run = store.run(run_id) if store is not None else None
        if store is None or run is None:
            raise UnknownRunError(f"no run has the id {run_id!r}: see genesis-fp16 runs")
        attempts = [_attempt(settings, each) for each in store.attempts(run_id)]
    folder = settings.home.absolute() / "runs" / run_id
    answer = {
        **asdict(run),
        "folder_removed": describe_removal(folder, run.folder_removed) or None,
        "attempts": attempts,
        "precision_history": [change for each in attempts for change in each["precision"]],
    }
    if as_json:
        print_json(answer)
    else:
        _print_run(answer)


def _attempt(settings: Settings, attempt: Attempt) -> dict[str, Any]:
    """The attempt's row, the paths of its files that exist, and a summary of its events."""
    from genesis_fp16.domain.attempt import attempt_folder
    from infrastructure.events import read_events
    from infrastructure.events.event import Evaluated, PrecisionChanged

    folder = attempt_folder(settings.home, attempt)
    log, events_file = folder / "worker.log", folder / "events.ndjson"
    try:
        events, trouble = list(read_events(events_file)), ""
    except OSError as error:
        events, trouble = [], f"{events_file.name} cannot be read: {error.strerror or error}"
    evaluations = [event for event in events if isinstance(event, Evaluated)]
    return {
        **asdict(attempt),
        "log": str(log) if os.path.lexists(log) else None,
        "events_file": str(events_file) if os.path.lexists(events_file) else None,
        "events_trouble": trouble,
        "events": dict(Counter(event.kind for event in events)),
        "precision": [
            {"time": event.time, "step": event.step, "loss_scale": event.loss_scale}
            | event.state.fields
            for event in events
            if isinstance(event, PrecisionChanged)
        ],
        "evaluation": evaluations[-1].model_dump(mode="json") if evaluations else None,
    }


def _print_run(run: dict[str, Any]) -> None:
    shown = ("id", "agent", "trigger", "state", "seed", "steps", "failures", "published", "reason")
    rows = [[name, run[name]] for name in shown]
    rows += [[name, moment(run[name])] for name in ("created_at", "started_at", "finished_at")]
    rows += [["metric " + name, value] for name, value in (run["metrics"] or {}).items()]
    rows += [["error", run["error"]], ["folder, with log and events", run["folder_removed"]]]
    print_table(["", ""], [row for row in rows if row[1] not in (None, "")], longest=LONGEST)
    typer.echo()
    print_table(
        ["attempt", "started", "ended", "how", "events", "log"],
        [
            [
                *(each["number"], moment(each["started_at"]), moment(each["finished_at"])),
                each["ending"],
                each["events_trouble"]
                or ", ".join(f"{count} {kind}" for kind, count in each["events"].items()),
                each["log"] or ("removed" if run["folder_removed"] else "not there"),
            ]
            for each in run["attempts"]
        ],
    )
    if run["precision_history"]:
        typer.echo()
        columns = ["time", "step", "requested", "effective", "reason", "loss_scale"]
        if any("roles" in change for change in run["precision_history"]):
            columns.append("roles")
        print_table(
            columns,
            [
                [moment(change["time"]), *(change.get(name, "") for name in columns[1:])]
                for change in run["precision_history"]
            ],
        )

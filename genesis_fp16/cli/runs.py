"""``genesis-fp16 runs``: a list of the runs, and everything known about one of them."""

from __future__ import annotations

import math
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

EVENTS_READ_BYTES = 8 << 20  # of one attempt; of a longer file its newest quarter of that
SHOWN = 20  # newest attempts, and newest changes of precision

app = typer.Typer(help="Past and present runs, newest first.")


class UnknownRunError(GenesisError, LookupError):
    """No run has this id."""


class RunEndedError(GenesisError, ValueError):
    """The run cannot be cancelled, because it has ended."""

    exit_code = os.EX_DATAERR


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
def show_run(
    run_id: str,
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="Read long event files whole; show every attempt and change of precision."
        ),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Show one run: its attempts and their events, its precision, the paths of its logs."""
    settings = load_command_settings().location
    with open_existing_store(settings) as store:
        run = store.run(run_id) if store is not None else None
        if store is None or run is None:
            raise UnknownRunError(f"no run has the id {run_id!r}: see genesis-fp16 runs")
        known = store.attempts(run_id)
    newest = known if everything else known[-SHOWN:]
    longest = math.inf if everything else EVENTS_READ_BYTES
    attempts = [_attempt(settings, each, longest) for each in newest]
    folder = settings.home.absolute() / "runs" / run_id
    answer = {
        **asdict(run),
        "folder_removed": describe_removal(folder, run.folder_removed) or None,
        "attempts_left_out": len(known) - len(newest),
        "attempts": attempts,
        "precision_history": [change for each in attempts for change in each["precision"]],
    }
    if as_json:
        print_json(answer)
    else:
        _print_run(answer, None if everything else SHOWN)


@app.command("cancel")
def cancel_run(
    run_id: str,
    reason: Annotated[str, typer.Option(help="Why; recorded in the audit trail.")] = "",
    as_json: JsonFlag = False,
) -> None:
    """Ask the daemon to cancel a run; one that trains writes a checkpoint and stops."""
    from genesis_fp16.cli.actor import actor

    settings = load_command_settings().location
    with open_existing_store(settings) as store:
        run = store.run(run_id) if store is not None else None
        if store is None or run is None:
            raise UnknownRunError(f"no run has the id {run_id!r}: see genesis-fp16 runs")
        if not store.request_cancel(run_id, actor=actor(), reason=reason):
            raise RunEndedError(f"{run_id} has ended already: it {run.state}")
    if as_json:
        print_json({"run": run_id, "cancel_requested": True})
    else:
        typer.echo(f"{run_id} of {run.agent} will be cancelled; a daemon that serves does it now")


def _attempt(settings: Settings, attempt: Attempt, longest: float) -> dict[str, Any]:
    """The attempt's row, the paths of its files that exist, and a summary of its events.

    Of more than *longest* bytes of events, the newest quarter of that is read.
    """
    from genesis_fp16.domain.attempt import attempt_folder
    from infrastructure.events import EventTail
    from infrastructure.events.event import Evaluated, Notice, PrecisionChanged

    folder = attempt_folder(settings.home, attempt)
    log, events_file = folder / "worker.log", folder / "events.ndjson"
    tail = EventTail(events_file, longest_backlog=longest)
    counts: Counter[str] = Counter()
    changes: list[PrecisionChanged] = []
    evaluated, fleet, ended_early, trouble = None, None, None, ""
    try:
        for event in tail.read():
            counts[event.kind] += 1
            if isinstance(event, PrecisionChanged):
                changes.append(event)
            elif isinstance(event, Evaluated):
                evaluated = event
            elif isinstance(event, Notice) and event.event == "fleet_changed":
                fleet = event.fields.get("reason")
            elif isinstance(event, Notice) and event.event == "training_stopped_early":
                ended_early = event.fields
    except OSError as error:
        trouble = f"{events_file.name} cannot be read: {error.strerror or error}"
    return {
        **asdict(attempt),
        "log": str(log) if os.path.lexists(log) else None,
        "events_file": str(events_file) if os.path.lexists(events_file) else None,
        "events_trouble": trouble,
        "events": dict(counts),
        "events_not_read_bytes": tail.skipped_bytes,
        "fleet": fleet,
        "training_stopped_early": ended_early,
        "precision": [
            {"time": event.time, "step": event.step, "loss_scale": event.loss_scale}
            | event.state.fields
            for event in changes
        ],
        "evaluation": None if evaluated is None else evaluated.model_dump(mode="json"),
    }


def _print_run(run: dict[str, Any], most_changes: int | None) -> None:
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
                _described_events(each),
                each["log"] or ("removed" if run["folder_removed"] else "not there"),
            ]
            for each in run["attempts"]
        ],
    )
    for each in run["attempts"]:
        if each["fleet"]:
            typer.echo(f"attempt {each['number']} in a fleet: {each['fleet']}")
        if early := each["training_stopped_early"]:
            typer.echo(
                f"attempt {each['number']} ended its training after epoch {early.get('epoch')} of "
                f"{early.get('epochs')}: {early.get('reason')}"
            )
    if run["attempts_left_out"]:
        typer.echo(f"{run['attempts_left_out']} earlier attempts are left out: see --all")
    if run["precision_history"]:
        typer.echo()
        shown_changes = run["precision_history"][-(most_changes or 0) :]
        columns = ["time", "step", "requested", "effective", "reason", "loss_scale"]
        if any("roles" in change for change in shown_changes):
            columns.append("roles")
        print_table(
            columns,
            [
                [moment(change["time"]), *(change.get(name, "") for name in columns[1:])]
                for change in shown_changes
            ],
        )
        if more := len(run["precision_history"]) - len(shown_changes):
            typer.echo(f"{more} earlier changes are left out: see --all")


def _described_events(attempt: dict[str, Any]) -> str:
    counts = ", ".join(f"{count} {kind}" for kind, count in attempt["events"].items())
    if left_out := attempt["events_not_read_bytes"]:
        counts += f" at the end; {left_out / 2**20:.1f} MiB before that are not counted: see --all"
    return attempt["events_trouble"] or counts

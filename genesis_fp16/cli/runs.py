"""``genesis-fp16 runs``: a list of the runs, and everything known about one of them."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from genesis_fp16.cli.arguments import check_agent_name
from genesis_fp16.cli.output import JsonFlag, print_json, print_line, print_table
from genesis_fp16.cli.settings import CommandSettings, load_command_settings
from genesis_fp16.cli.store import open_existing_store
from genesis_fp16.domain.moments import duration, moment
from genesis_fp16.domain.run import RunState
from genesis_fp16.runs.run_folder import describe_removal
from infrastructure.events.plain_text import LONGEST

if TYPE_CHECKING:
    from genesis_fp16.daemon.queue import QueuedRun
    from genesis_fp16.store import Store

EVENTS_READ_BYTES = 8 << 20  # of one attempt; of a longer file its newest quarter of that
SHOWN = 20  # newest attempts, and newest changes of precision

RunName = Annotated[
    str, typer.Argument(metavar="RUN", help="Id of the run, or its number: AGENT#3 or '#3'.")
]

app = typer.Typer(help="Past and present runs, newest first.")


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
    from genesis_fp16.daemon.operator import recent_agents

    settings = load_command_settings().location
    with open_existing_store(settings) as store:
        check_agent_name(agent, store)
        runs = [] if store is None else store.runs(agent, limit)
        other_agents = sorted(recent_agents(store)) if store is not None and not runs else []
    if as_json:
        print_json([asdict(run) for run in runs])
    elif other_agents:
        typer.echo(
            f"no runs of {agent} in {settings.home}; there are runs of {', '.join(other_agents)}"
        )
    elif not runs:
        typer.echo(f"no runs recorded in {settings.home}: start genesis-fp16 serve")
    else:
        print_table(
            [
                *("run", "agent", "number", "state", "created"),
                *("trained for", "steps", "published", "why"),
            ],
            [
                [
                    *(run.id, run.agent, f"#{run.number}", run.state, moment(run.created_at)),
                    *(duration(run.active_seconds), run.steps),
                    {True: "yes", False: "no", None: ""}[run.published],
                    run.error or run.reason,
                ]
                for run in runs
            ],
        )


@app.command("show")
def show_run(
    run_name: RunName,
    everything: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Read long event files whole; show every attempt and every change.",
        ),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Show one run: its attempts and their events, its precision, the paths of its logs."""
    from genesis_fp16.daemon.attempt_summary import summarize_attempt
    from genesis_fp16.daemon.operator import find_run

    command_settings = load_command_settings()
    settings = command_settings.location
    with open_existing_store(settings) as store:
        run = find_run(store, run_name)
        known = store.attempts(run.id) if store is not None else []
        waits = [] if run.state is not RunState.QUEUED else _read_queue(command_settings, store)
    newest = known if everything else known[-SHOWN:]
    longest = math.inf if everything else EVENTS_READ_BYTES
    home = settings.home.absolute()
    attempts = [summarize_attempt(home, attempt, longest) for attempt in newest]
    folder = home / "runs" / run.id
    answer = {
        **asdict(run),
        "folder_removed": describe_removal(folder, run.folder_removed) or None,
        "waits": next((asdict(one) for one in waits if one.run.id == run.id), None),
        "attempts_left_out": len(known) - len(newest),
        "attempts": attempts,
        "precision_history": [change for attempt in attempts for change in attempt["precision"]],
    }
    if as_json:
        print_json(answer)
    else:
        _print_run(answer, None if everything else SHOWN)


@app.command("cancel")
def cancel_run(
    run_name: RunName,
    reason: Annotated[str, typer.Option(help="Why; recorded in the audit trail.")] = "",
    as_json: JsonFlag = False,
) -> None:
    """Ask the daemon to cancel a run; one that trains writes a checkpoint and stops."""
    from genesis_fp16.cli.actor import actor
    from genesis_fp16.daemon import operator

    known = load_command_settings()
    with open_existing_store(known.location) as store:
        run = operator.cancel_run(store, run_name, actor=actor(), reason=reason)
    if as_json:
        print_json({"run": run.id, "cancel_requested": True})
    else:
        effect = known.describe_effect("does it at once", "does it")
        typer.echo(f"{run.id} of {run.agent} will be cancelled; {effect}")


@app.command("queue")
def show_queue(as_json: JsonFlag = False) -> None:
    """Show the runs that wait, in the order in which they start: what for, and until when."""
    command_settings = load_command_settings()
    with open_existing_store(command_settings.location) as store:
        waiting = _read_queue(command_settings, store)
    if as_json:
        print_json([asdict(one) for one in waiting])
    elif not waiting:
        typer.echo("no run waits")
    else:
        print_table(
            ["", "run", "agent", "number", "due", "likely start", "why it waits"],
            [
                [
                    *(one.place, one.run.id, one.run.agent, f"#{one.run.number}"),
                    *(moment(one.run.due_at), moment(one.starts_at) or "unknown", one.why),
                ]
                for one in waiting
            ],
        )


@app.command("move")
def move_run(
    run_name: RunName,
    first: Annotated[
        bool, typer.Option("--first/--last", help="Before all other runs that wait, or after them.")
    ],
    reason: Annotated[str, typer.Option(help="Why; recorded in the audit trail.")] = "",
    as_json: JsonFlag = False,
) -> None:
    """Let a queued run start before all others, or after them."""
    from genesis_fp16.cli.actor import actor
    from genesis_fp16.daemon import operator

    known = load_command_settings()
    with open_existing_store(known.location) as store:
        run = operator.move_run(store, run_name, first=first, actor=actor(), reason=reason)
    if as_json:
        print_json({"run": run.id, "to": "first" if first else "last"})
    else:
        place = "before" if first else "after"
        typer.echo(f"{run.id} of {run.agent} starts {place} all other runs that wait")


def _read_queue(command_settings: CommandSettings, store: Store | None) -> list[QueuedRun]:
    from genesis_fp16.daemon.known_agents import known_agents
    from genesis_fp16.daemon.queue import read_queue

    if store is None:
        return []
    location = command_settings.location
    elsewhere = location.database_url is not None  # a daemon may serve on another host
    return read_queue(
        store,
        command_settings.in_force or location,
        known_agents(location),
        serving=command_settings.daemon is not None or elsewhere,
    )


def _print_run(run: dict[str, Any], most_changes: int | None) -> None:
    shown = ("id", "agent", "trigger", "state", "seed", "steps", "failures", "published", "reason")
    rows = [[name, run[name]] for name in shown]
    rows.insert(2, ["number", f"#{run['number']}"])
    rows += [[name, moment(run[name])] for name in ("created_at", "started_at", "finished_at")]
    rows += _waits(run["waits"])
    rows += [["metric " + name, value] for name, value in (run["metrics"] or {}).items()]
    rows += [["error", run["error"]], ["folder, with log and events", run["folder_removed"]]]
    print_table(["", ""], [row for row in rows if row[1] not in (None, "")], longest=LONGEST)
    typer.echo()
    if run["parts"]:
        columns = ["steps", "overflows", "nonfinite_losses", "loss", "loss_scale"]
        rows = [[name, *map(part.get, columns)] for name, part in run["parts"].items()]
        print_table(["part", *columns], rows)
        typer.echo()
    print_table(
        ["attempt", "started", "ended", "how", "events", "log"],
        [
            [
                *(attempt["number"], moment(attempt["started_at"]), moment(attempt["finished_at"])),
                f"waits: {attempt['waiting']}"
                if attempt["waiting"]
                else attempt["ending"] or attempt["activity"],
                _described_events(attempt),
                attempt["log"] or ("removed" if run["folder_removed"] else "not there"),
            ]
            for attempt in run["attempts"]
        ],
    )
    _print_notes(run)
    if run["precision_history"]:
        typer.echo()
        shown_changes = run["precision_history"][-(most_changes or 0) :]
        columns = ["time", "step", "requested", "effective", "reason", "loss_scale"]
        further = ("roles", "modules", "parts")
        columns += [name for name in further if any(name in c for c in shown_changes)]
        print_table(
            columns,
            [
                [moment(change["time"]), *(change.get(name, "") for name in columns[1:])]
                for change in shown_changes
            ],
        )
        if more := len(run["precision_history"]) - len(shown_changes):
            typer.echo(f"{more} earlier changes are left out: see --all")


def _print_notes(run: dict[str, Any]) -> None:
    """What the attempts say about errors, early ends, precision and data."""
    for attempt in run["attempts"]:
        if attempt["error"] and attempt["error"] != run["error"]:
            print_line(f"attempt {attempt['number']} failed: {attempt['error']}")
        if early := attempt["training_stopped_early"]:
            print_line(
                f"attempt {attempt['number']} ended its training after epoch {early.get('epoch')} "
                f"of {early.get('epochs')}: {early.get('reason')}"
            )
    for proposal in dict.fromkeys(attempt["precision_proposal"] for attempt in run["attempts"]):
        if proposal:
            print_line(f"for the job's code: {proposal}")
    problems = [each for attempt in run["attempts"] for each in attempt["data_problems"]]
    for problem in dict.fromkeys(problems):
        print_line(f"data: {problem}")
    if run["attempts_left_out"]:
        typer.echo(f"{run['attempts_left_out']} earlier attempts are left out: see --all")


def _waits(waiting: dict[str, Any] | None) -> list[list[str]]:
    if waiting is None:
        return []
    likely = moment(waiting["starts_at"]) or "unknown"
    return [["waits", waiting["why"]], ["likely start", likely]]


def _described_events(attempt: dict[str, Any]) -> str:
    counts = ", ".join(f"{count} {kind}" for kind, count in attempt["events"].items())
    if left_out := attempt["events_not_read_bytes"]:
        counts += f" at the end; {left_out / 2**20:.1f} MiB before that are not counted: see --all"
    return attempt["events_trouble"] or counts

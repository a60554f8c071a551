"""``genesis-fp16 records``: removed by group; decisions to and from Vowpal Wabbit's dsjson."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from genesis_fp16.cli.arguments import check_agent_name
from genesis_fp16.cli.output import JsonFlag, print_json, print_line
from genesis_fp16.cli.settings import load_location
from genesis_fp16.cli.store import ReasonOption, changing, open_existing_store
from genesis_fp16.domain.errors import GenesisError
from infrastructure.decisions import LOG_FOLDER
from infrastructure.files import atomic_file

if TYPE_CHECKING:
    from infrastructure.decisions.logged import LoggedDecision

_MOST_SHOWN = 10  # lines that were left out

app = typer.Typer(help="Records of what agents did.", no_args_is_help=True)


class DecisionsError(GenesisError, ValueError):
    """Decisions were not read or not written; the message says why, and what to do."""

    exit_code = os.EX_DATAERR


@app.command("delete")
def delete(
    agent: str,
    group: Annotated[str, typer.Option("--group", help="Group of the records, as reported.")],
    reason: ReasonOption,
    as_json: JsonFlag = False,
) -> None:
    """Remove all records of a group of AGENT, and list the models that have seen them."""
    from genesis_fp16.daemon import records

    with changing(agent, reason) as change:
        name = change.agent
        removed = records.delete_group(change.settings, change.store, name, group, **change.audit)
    if as_json:
        print_json(records.as_json(removed))
        return
    typer.echo(
        f"removed {removed.transitions} transitions, {removed.records} records of decisions and "
        f"{removed.caches} caches of {name}"
    )
    spooled = removed.spooled
    if spooled.removed:
        print_line(f"removed {spooled.removed} reports from clients' spools")
    for file in spooled.in_use:
        print_line(f"left in {file}: a running client has it; repeat this once it has sent them")
    for file in spooled.of_others:
        print_line(f"left in {file}: its reports are for a predictor at another address")
    for file in spooled.unreadable:
        print_line(f"not searched: {file}, which this user may not open")
    print_line(
        "not searched: clients' spools on other machines, or outside ~/.local/state; the source "
        "that the agent itself reads"
    )
    if removed.predict_servers:
        print_line(
            "not searched: disks of predict servers and the bucket of GENESIS_SHARED_URL; repeat "
            "this once all they hold has arrived, and delete their copies there"
        )
    for seen in removed.seen_by:
        count = "may have" if seen.transitions is None else f"has {seen.transitions} of them"
        use = ", in use" if seen.in_use else ""
        print_line(f"version {seen.version}{use}: {count} in its training data")
    if removed.seen_by:
        typer.echo(f"to replace the model in use: genesis-fp16 run {name}")
    for run in removed.unfinished:
        print_line(f"run {run} is under way, and may have read them before: see its version later")


@app.command("export")
def export(
    agent: str,
    file: Annotated[Path, typer.Argument(help="File to write, one decision a line.")],
) -> None:
    """Write AGENT's decisions with propensity and outcome as dsjson, for vw --dsjson."""
    from infrastructure.decisions.dsjson import write_line
    from infrastructure.decisions.log import logs_of
    from infrastructure.decisions.logged import logged_decisions

    logs, written, left_out = logs_of(_folder_of(agent)), 0, 0
    try:
        with atomic_file(file) as output:
            for decision in chain.from_iterable(map(logged_decisions, logs.values())):
                if decision.propensity is None:
                    left_out += 1
                    continue
                output.write(write_line(decision).encode() + b"\n")
                written += 1
    except OSError as error:
        raise DecisionsError(f"{file} was not written: {error}") from error
    print_line(f"{written:,} decisions are in {file}; {left_out:,} have no propensity")


@app.command("import")
def import_(
    agent: str, file: Annotated[Path, typer.Argument(help="File in dsjson, one decision a line.")]
) -> None:
    """Add the decisions of a file in dsjson to AGENT's log; its next run takes them in, each once.

    Lines that hold no decision are left out and named.
    """
    from infrastructure.decisions.dsjson import DsjsonError, read_lines
    from infrastructure.decisions.logged import append_decisions

    log, refused, read = _folder_of(agent) / LOG_FOLDER, list[str](), 0

    def decisions() -> Iterator[LoggedDecision]:
        nonlocal read
        with file.open("rb") as lines:
            for number, each in read_lines(lines):
                if isinstance(each, DsjsonError):
                    refused.append(f"line {number}: {each}")
                else:
                    read += 1
                    yield each

    try:
        new = append_decisions(log, decisions())
    except OSError as error:
        raise DecisionsError(
            f"{file} was not imported: {error}. What is in the log already counts once: import it "
            "again; if a predictor has the log open, stop the daemon meanwhile"
        ) from error
    print_line(
        f"{new:,} decisions are new, {read - new:,} were there; {len(refused):,} lines are left out"
    )
    for problem in refused[:_MOST_SHOWN]:
        print_line(problem)


def _folder_of(agent: str) -> Path:
    settings = load_location()
    with open_existing_store(settings) as store:
        name = check_agent_name(agent, store) or agent
    return settings.home.absolute() / "agents" / name

"""``genesis-fp16 records``: what is recorded of a customer or a task, removed."""

from __future__ import annotations

from typing import Annotated

import typer

from genesis_fp16.cli.arguments import check_agent_name, check_reason
from genesis_fp16.cli.output import JsonFlag, print_json, print_line
from genesis_fp16.cli.settings import load_location
from genesis_fp16.cli.store import open_store

app = typer.Typer(help="Records of what agents did.", no_args_is_help=True)


@app.command("delete")
def delete(
    agent: str,
    group: Annotated[str, typer.Option("--group", help="Group of the records, as reported.")],
    reason: Annotated[str, typer.Option("--reason", help="Why; kept in the audit trail.")],
    as_json: JsonFlag = False,
) -> None:
    """Remove all records of a group of AGENT, and list the models that have seen them."""
    from genesis_fp16.cli.actor import actor
    from genesis_fp16.daemon import records

    settings, why = load_location(), check_reason(reason)
    with open_store(settings) as store:
        name = check_agent_name(agent, store) or agent
        removed = records.delete_group(settings, store, name, group, actor=actor(), reason=why)
    if as_json:
        print_json(records.as_json(removed))
        return
    typer.echo(
        f"removed {removed.transitions} transitions, {removed.records} records of decisions and "
        f"{removed.caches} caches of {name}"
    )
    for seen in removed.seen_by:
        count = "may have" if seen.transitions is None else f"has {seen.transitions} of them"
        use = ", in use" if seen.in_use else ""
        print_line(f"version {seen.version}{use}: {count} in its training data")
    if removed.seen_by:
        typer.echo(f"to replace the model in use: genesis-fp16 run {name}")
    for run in removed.unfinished:
        print_line(f"run {run} is under way, and may have read them before: see its version later")

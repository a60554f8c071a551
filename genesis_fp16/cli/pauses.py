"""``genesis-fp16 agents pause`` and ``resume``: keep agents from starting runs, for a while."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from genesis_fp16.cli.arguments import check_agent_name, check_reason
from genesis_fp16.cli.output import JsonFlag, print_json, print_warning
from genesis_fp16.cli.settings import load_location
from genesis_fp16.cli.store import open_existing_store, open_store

if TYPE_CHECKING:
    from genesis_fp16.domain.pause import PausesInForce
    from genesis_fp16.settings import Settings

ReasonOption = Annotated[str, typer.Option("--reason", help="Why; kept in the audit trail.")]
NameArgument = Annotated[str | None, typer.Argument(metavar="[NAME]", help="The agent.")]
AllOption = Annotated[bool, typer.Option("--all", help="All agents, also future ones.")]


def pause(
    reason: ReasonOption,
    agent: NameArgument = None,
    everything: AllOption = False,
    now: Annotated[
        bool,
        typer.Option("--now", help="Stop runs under way, too: they checkpoint, and go on later."),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Start no run of an agent until it is resumed, also after a restart of the daemon."""
    from genesis_fp16.cli.actor import actor
    from genesis_fp16.domain.pause import Pause

    _check_scope(agent, everything)
    made = Pause(
        agent=check_agent_name(agent),
        reason=check_reason(reason),
        actor=actor(),
        created_at=time.time(),
        stops_runs=now,
    )
    with open_store(load_location()) as store:
        store.pauses.begin(made)
    if as_json:
        print_json(asdict(made))
        return
    under_way = "stops after a checkpoint" if now else "goes on; --now would stop it"
    typer.echo(f"paused {agent or 'all agents'}: no run starts; one under way {under_way}")


def resume(
    reason: ReasonOption,
    agent: NameArgument = None,
    everything: AllOption = False,
    as_json: JsonFlag = False,
) -> None:
    """End the pause of an agent, or the pause of all agents; what it missed is caught up on."""
    from genesis_fp16.cli.actor import actor

    _check_scope(agent, everything)
    why = check_reason(reason)
    with open_existing_store(load_location()) as store:
        if store is None:
            check_agent_name(agent)
            before: PausesInForce = {}
        else:
            before = store.pauses.in_force()
            name = agent if agent in before else check_agent_name(agent, store)
            store.pauses.end(name, actor=actor(), reason=why)
    ended, scope = agent in before, agent or "all agents"
    if as_json:
        print_json({"agent": agent, "resumed": ended})
    else:
        typer.echo(f"resumed {scope}" if ended else f"no pause of {scope} is in force")
    if agent is not None and None in before:
        print_warning("all agents are still paused: genesis-fp16 agents resume --all")
    if agent is None and (paused := sorted(name for name in before if name)):
        print_warning(f"still paused by themselves: {', '.join(paused)}")


def read_pauses(settings: Settings) -> PausesInForce | None:
    """The pauses in force; None, with a warning, if the database cannot be read."""
    from genesis_fp16.store import StoreError

    try:
        with open_existing_store(settings) as store:
            return store.pauses.in_force() if store is not None else {}
    except StoreError as error:
        print_warning(f"which agents are paused is unknown: {error}")
        return None


def _check_scope(agent: str | None, everything: bool) -> None:
    if (agent is None) is not everything:
        raise typer.BadParameter("name one agent, or give --all; not both")

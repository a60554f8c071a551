"""``genesis-fp16 precision``: what determines the precision now, and the operator's override."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from genesis_fp16.cli.arguments import check_agent_name, check_reason
from genesis_fp16.cli.explain import describe_override, explain
from genesis_fp16.cli.output import JsonFlag, print_json, print_line, print_warning
from genesis_fp16.cli.settings import CommandSettings, load_command_settings
from genesis_fp16.cli.store import open_existing_store, open_store
from genesis_fp16.domain.moments import moment
from infrastructure.events.precision_state import WISHES, PrecisionWish

if TYPE_CHECKING:
    from genesis_fp16.settings import Settings
    from genesis_fp16.store import Store

app = typer.Typer(help="The precision in force, and the operator's override of it.")
app.command("explain")(explain)

AgentOption = Annotated[str | None, typer.Option("--agent", help="One agent; else all.")]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why; kept in the audit trail.")]
_NUMBER = r"[0-9]{1,400}(?:\.[0-9]{1,20})?"
_DURATION = re.compile("".join(rf"(?:({_NUMBER}){unit})?" for unit in "dhms"))
_UNIT_SECONDS = (86400.0, 3600.0, 60.0, 1.0)


_LONGEST_SECONDS = 10 * 366 * 86400.0


def _precision(text: str) -> str:
    if text not in WISHES:
        raise typer.BadParameter(f"one of {', '.join(WISHES)}, got {text!r}")
    return text


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    match = _DURATION.fullmatch(text.strip())
    counts = match.groups(default="0") if match is not None else ()
    seconds = sum(float(count) * unit for count, unit in zip(counts, _UNIT_SECONDS, strict=False))
    if seconds < 1:
        raise typer.BadParameter(
            f"write a duration as 90s, 30m, 1d12h, 24h or 7d, got {text[:80]!r}"
        )
    if seconds > _LONGEST_SECONDS:
        raise typer.BadParameter("an override lasts ten years at most; without --for it has no end")
    return seconds


@app.callback(invoke_without_command=True)
def default(context: typer.Context, as_json: JsonFlag = False) -> None:
    """Show what determines the precision."""
    if context.invoked_subcommand is None:
        show(as_json)


@app.command()
def show(as_json: JsonFlag = False) -> None:
    """Show what determines the precision, and what each agent's worker acknowledged last."""
    known = load_command_settings()
    answer = _collect(known)
    if as_json:
        print_json(answer)
        return
    for line in _describe_settings(known, answer):
        print_line(line)
    for override in answer["overrides"]:
        print_line(f"override: {describe_override(override)}")
    for agent, precision in answer["agents"].items():
        print_line(f"setting of {agent}: {precision}")
    for agent, preset in answer["role_precisions"].items():
        print_line(f"preset of {agent}: {preset}, by its ROLE_PRECISION")
    for agent, decision in answer["guard"].items():
        if decision["state"] != "watching":
            print_line(
                f"guard: {agent} {decision['state']} since {moment(decision['at'])} "
                f"({decision['trigger']}); see genesis-fp16 precision explain {agent}"
            )
    for agent, state in answer["acknowledged"].items():
        fields = " ".join(f"{name}={state[name]}" for name in ("requested", "effective", "reason"))
        print_line(f"{agent} acknowledged {fields} in run {state['run']}")
        for name in [name for name in ("roles", "modules", "parts") if state.get(name)]:
            raised = " in FP32" if name == "modules" else ""
            print_line(f"{name} of {agent}{raised}: {state[name].replace(',', ' ')}")


def _describe_settings(known: CommandSettings, answer: dict[str, Any]) -> Iterator[str]:
    """The settings in force, their source, and what differs from those read here."""
    flag, daemon = answer["flag"], known.daemon
    if daemon is not None:
        yield f"the daemon ({daemon}) reads {daemon.env_file or 'its settings'}"
        if known.in_force is known.local:
            yield "its settings are not known: these are the ones read here"
    if known.in_force is None:
        yield "ENABLE_FP16_TRAINING is unknown: the settings are wrong, and no daemon uses others"
        return
    allowed = "allows half precision" if flag["value"] else "demands FP32 for all"
    yield f"ENABLE_FP16_TRAINING {allowed} ({flag['source']})"
    yield f"GENESIS_PRECISION is {answer['default']}, in force where nothing demands FP32"
    for name, change in answer["read_otherwise_here"].items():
        yield f"differs here: {name}: {change}; see genesis-fp16 doctor"


@app.command("set")
def set_override(
    precision: Annotated[
        str, typer.Argument(callback=_precision, help="fp32, fp16, bf16 or auto.")
    ],
    reason: ReasonOption,
    agent: AgentOption = None,
    valid_for: Annotated[
        str | None, typer.Option("--for", help="For example 30m, 24h or 1d12h; else until cleared.")
    ] = None,
    next_run: Annotated[
        bool,
        typer.Option(
            "--next-run/--now", help="Apply from the next run on, or to running ones too."
        ),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Override the precision; workers on this machine follow within two seconds."""
    from genesis_fp16.cli.actor import actor
    from genesis_fp16.domain.precision import Override

    known = load_command_settings()
    now, seconds = time.time(), _seconds(valid_for)
    name: PrecisionWish = next(wish for wish in WISHES if wish == precision)
    override = Override(
        agent=check_agent_name(agent),
        precision=name,
        reason=check_reason(reason),
        actor=actor(),
        created_at=now,
        expires_at=None if seconds is None else now + seconds,
        next_run=next_run,
    )
    with open_store(known.location) as store:
        store.overrides.set(override)
    _warn_if_daemon_in_trouble(known)
    if as_json:
        print_json(asdict(override))
        return
    until = f" until {moment(override.expires_at)}" if override.expires_at else ""
    at_once = known.describe_effect("applies it at once", "applies it")
    effect = ", in runs that begin from now on" if next_run else f"; {at_once}"
    typer.echo(f"{precision} for {agent or 'all agents'}{until}{effect}")
    if agent is None and precision != "fp32" and not next_run:
        exception = "a run whose worker fell back to FP32 by itself stays in FP32 until it ends"
        typer.echo(f"{exception}, unless --agent names its agent")
    flag = known.in_force is None or known.in_force.enable_fp16_training
    if precision != "fp32" and not flag:
        typer.echo("but ENABLE_FP16_TRAINING is false, so FP32 stays in force", err=True)


def _warn_if_daemon_in_trouble(known: CommandSettings) -> None:
    """Warn if the running daemon may not see a change in the store."""
    from genesis_fp16.store.daemon_status import STARTING

    if known.daemon is not None and known.daemon.trouble not in ("", STARTING):
        print_warning(
            f"the daemon ({known.daemon}) may not see it: {known.daemon.trouble}; to roll back "
            f"now, set ENABLE_FP16_TRAINING=false in {known.daemon.env_file or 'its settings file'}"
        )


@app.command()
def clear(
    reason: ReasonOption = "cleared",
    agent: AgentOption = None,
    guard: Annotated[
        str | None,
        typer.Option("--guard", metavar="AGENT", help="End the guard's rollback of AGENT instead."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Withdraw the override of one agent or of all agents, or end a rollback by the guard."""
    from genesis_fp16.cli.actor import actor

    known = load_command_settings()
    if guard is not None and agent is not None:
        raise typer.BadParameter("give --agent for its override, or --guard; not both")
    reason = check_reason(reason)
    scope = agent or "all agents"
    with open_existing_store(known.location) as store:
        name = check_agent_name(agent if guard is None else guard, store)
        if store is None:
            cleared = False
        elif guard is not None:
            cleared = _clear_guard(known, store, guard, reason)
        else:
            cleared = store.overrides.clear(name, actor=actor(), reason=reason)
    if cleared:
        _warn_if_daemon_in_trouble(known)
    if as_json:
        print_json({**({"guard": guard} if guard else {"agent": agent}), "cleared": cleared})
    elif guard is not None:
        typer.echo(
            f"{guard} tries half precision again, on probation: another trip doubles the cool-down"
            if cleared
            else f"the guard has not tripped for {guard}"
        )
    else:
        typer.echo(f"cleared for {scope}" if cleared else f"no override is in force for {scope}")


def _clear_guard(known: CommandSettings, store: Store, agent: str, reason: str) -> bool:
    """Put the agent on probation; False if the guard has not tripped for it."""
    from genesis_fp16.cli.actor import actor
    from genesis_fp16.daemon import operator

    home = known.location.home.absolute()
    cleared = operator.clear_guard(home, known.in_force, store, agent, actor=actor(), reason=reason)
    if cleared is not None and cleared.evidence_error:
        typer.echo(f"the evidence could not be written: {cleared.evidence_error}", err=True)
    return cleared is not None


def _collect(known: CommandSettings) -> dict[str, Any]:
    """Everything that determines the precision, and what was acknowledged."""
    followed, daemon = known.in_force, known.daemon
    overrides: list[dict[str, Any]] = []
    acknowledged: dict[str, dict[str, Any]] = {}
    guard: dict[str, dict[str, Any]] = {}
    with open_existing_store(known.location) as store:
        if store is not None:
            overrides = [asdict(override) for override in store.overrides.in_force()]
            guard = {name: asdict(last) for name, last in store.guard.latest().items()}
            for run in store.runs(limit=200):
                if run.precision is not None and run.agent not in acknowledged:
                    acknowledged[run.agent] = {**run.precision, "run": run.id, "state": run.state}
    return {
        "flag": {
            "value": followed and followed.enable_fp16_training,
            "source": known.source_of("enable_fp16_training"),
        },
        "default": followed and followed.precision,
        "daemon": daemon and daemon.model_dump(mode="json", exclude={"hot", "sources"}),
        "read_otherwise_here": known.differences,
        "overrides": overrides,
        "guard": guard,
        "agents": _set_for_agents(followed, "precision"),
        "role_precisions": _set_for_agents(followed, "role_precision"),
        "acknowledged": acknowledged,
    }


def _set_for_agents(settings: Settings | None, field: str) -> dict[str, str]:
    """Values of the setting *field* of every agent that has one."""
    agents = {} if settings is None else settings.agents
    values = {name.replace("_", "-"): getattr(agent, field) for name, agent in agents.items()}
    return {name: value for name, value in values.items() if value is not None}

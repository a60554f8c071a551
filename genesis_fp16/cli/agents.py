"""``genesis-fp16 agents`` and ``preflight``: which agents work, which precision suits them."""

from __future__ import annotations

import math
import os
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from genesis_fp16.cli import configured_agents, new_agent, pauses
from genesis_fp16.cli.output import (
    JsonFlag,
    print_json,
    print_line,
    print_table,
    print_warning,
)
from genesis_fp16.cli.store import open_existing_store
from genesis_fp16.domain.moments import moment
from genesis_fp16.domain.run import Run, RunState
from genesis_fp16.settings import Settings, load_settings
from infrastructure.events.preflight_report import PreflightReport

if TYPE_CHECKING:
    from genesis_fp16.runs.outcome_counts import OutcomeCounts
    from infrastructure.agent_contract import Schedule

_MODULES_SHOWN = 12
_COUNTING_SECONDS = 2.0  # in an agent's log of decisions

app = typer.Typer(help="Installed and configured agents, and new ones without code.")
app.command("add")(configured_agents.add)
app.command("enable")(configured_agents.enable)
app.command("new")(new_agent.new)
app.command("pause")(pauses.pause)
app.command("resume")(pauses.resume)


@app.callback(invoke_without_command=True)
def agents(
    context: typer.Context,
    rescan: Annotated[
        bool,
        typer.Option("--rescan", help="Look again, and probe again what has changed or failed."),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Show which agents are usable: as the daemon has found them, or probed here."""
    if context.invoked_subcommand is not None:
        return
    settings = load_settings()
    from genesis_fp16.daemon import known_agents
    from genesis_fp16.domain.pause import pauses_of
    from genesis_fp16.domain.schedule import local_due, next_due
    from genesis_fp16.runs.outcome_counts import OutcomeCounts

    ended = not rescan or known_agents.rescan(settings, lambda line: typer.echo(line, err=True))
    plugins = known_agents.known_agents(settings, again=rescan)
    paused = pauses.read_pauses(settings)
    newest = _newest_runs(settings)
    rows, counts = [], OutcomeCounts(settings.home)
    for plugin in plugins:
        schedule = due = None
        if plugin.schedule is not None:
            schedule = settings.schedule_for(plugin.name, plugin.schedule)
            due = next_due(schedule, time.time()) if plugin.state == "ready" else None
        of_agent = [] if paused is None else pauses_of(paused, plugin.name)
        rows.append(
            {
                **asdict(plugin),
                "schedule": None if schedule is None else str(schedule),
                "next_run_at": due,
                "next_run_local": local_due(schedule, due) if schedule else None,
                "outcomes": _outcomes(counts, plugin.name, schedule),
                "paused": None if paused is None else [asdict(pause) for pause in of_agent],
                "last_run": newest[plugin.name].state.value if plugin.name in newest else None,
            }
        )
    if as_json:
        print_json(rows)
    else:
        names = ("name", "state", "schedule", "distribution", "version", "entry_point")
        print_table(
            [*names[:2], "paused", "last run", "next run", *names[2:]],
            [
                [
                    row["name"],
                    row["state"],
                    "yes" if row["paused"] else "",
                    row["last_run"] or "",
                    _next_run(row["next_run_at"], row["next_run_local"], row["outcomes"]),
                    *(row[name] for name in names[2:]),
                ]
                for row in rows
            ],
        )
        for pause in (paused or {}).values():
            since = f"since {moment(pause.created_at)} by {pause.actor}: {pause.reason}"
            print_line(f"{pause.agent or 'all agents'} paused {since}")
        for plugin in plugins:
            if plugin.reason:
                typer.echo(f"\n{plugin.name} is {plugin.state}: {plugin.reason}")
            run = newest.get(plugin.name)
            if run is not None and run.state is RunState.NO_DATA:
                typer.echo()
                print_line(f"{plugin.name} has no data: {run.reason}")
    if not ended:
        print_warning("the daemon is still probing agents: see genesis-fp16 agents later")
        raise typer.Exit(os.EX_TEMPFAIL)


def _outcomes(
    counts: OutcomeCounts, agent: str, schedule: Schedule | None
) -> dict[str, int] | None:
    if schedule is None or schedule.outcomes is None:
        return None
    return {"waiting": counts.of(agent, _COUNTING_SECONDS), "needed": schedule.outcomes}


def _next_run(due: float | None, local: str | None, outcomes: dict[str, int] | None) -> str:
    if outcomes is not None:
        return f"at {outcomes['needed']} outcomes, now {outcomes['waiting']}"
    return moment(due) + (f" = {local}" if local else "")


def _newest_runs(settings: Settings) -> dict[str, Run]:
    """The newest run of each agent; none if the database cannot be read, which others report."""
    from genesis_fp16.store import StoreError

    try:
        with open_existing_store(settings) as store:
            return {} if store is None else store.newest_runs()
    except StoreError:
        return {}


def preflight(agent: str, as_json: JsonFlag = False) -> None:
    """Measure AGENT's training job in every precision, on copies, in a child process."""
    settings = load_settings()
    from genesis_fp16.daemon.preflight import run_preflight

    report = run_preflight(settings, agent)
    if as_json:
        print_json(report.model_dump(mode="json"))
    else:
        _print_report(report)


def _print_report(report: PreflightReport) -> None:
    threads = "" if report.device.startswith("cuda") else f", {report.threads} threads"
    typer.echo(
        f"measured on {report.device} ({report.device_name}{threads}), "
        f"torch {report.torch_version}, {report.batches} batches\n"
    )
    print_table(
        [
            *("precision", "usable", "step", "of FP32", "saved for backward", "peak"),
            "gradient error",
        ],
        [
            [
                measurement.precision,
                "yes" if measurement.usable else "no",
                ""
                if measurement.seconds_per_step is None
                else f"{measurement.seconds_per_step * 1e3:.2f} ms",
                ""
                if measurement.ratio is None
                else f"{measurement.ratio:.2f} ±{measurement.ratio_error or 0.0:.2f}",
                _mebibytes(measurement.saved_bytes),
                _mebibytes(measurement.peak_bytes),
                "" if measurement.gradient_error is None else f"{measurement.gradient_error:.2g}",
            ]
            for measurement in report.measurements
        ],
    )
    if report.modules:
        typer.echo()
        _print_ranges(report)
    typer.echo(f"\ntrain in {report.verdict}")
    for reason in report.reasons:
        typer.echo(f"  {reason}")
    if report.proposal:
        typer.echo(f"  fp16: {report.proposal}")


def _print_ranges(report: PreflightReport) -> None:
    """Largest activations and gradients per module, and the loss scale that follows from them."""
    print_table(
        ["module in FP16", "activation", "gradient", "underflow", ""],
        [
            [
                module.module,
                f"{module.activation:.3g}",
                f"{module.gradient:.3g}",
                f"{module.underflow:.2%}",
                "keep in FP32" if module.keep_fp32 else "",
            ]
            for module in report.modules[:_MODULES_SHOWN]
        ],
    )
    if (more := len(report.modules) - _MODULES_SHOWN) > 0:
        typer.echo(f"{more} modules with smaller activations are left out: see --json")
    if not (report.largest_safe_scale and report.recommended_scale):
        return
    if any(m.precision == "fp16" and m.gradient_error == math.inf for m in report.measurements):
        typer.echo(
            f"\nloss scale: what the modules give fits FP16 up to "
            f"{_power(report.largest_safe_scale)}, but gradients are not finite at "
            f"{_power(report.recommended_scale)}"
        )
    else:
        typer.echo(
            f"\nloss scale: no overflow up to {_power(report.largest_safe_scale)}; recommended "
            f"{_power(report.recommended_scale)}, which flushes {report.underflow:.2%} of the "
            "gradients to zero"
        )


def _mebibytes(count: int | None) -> str:
    return "" if count is None else f"{count / 2**20:.2f} MiB"


def _power(scale: float) -> str:
    return f"2^{round(math.log2(scale))}"

"""``genesis-fp16 profile``: where the time and memory of an agent's run go, and what to change."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

import typer

from genesis_fp16.cli.output import JsonFlag, print_json, print_table, print_warning
from genesis_fp16.cli.store import open_existing_store
from genesis_fp16.domain.profile_verdict import caveats, judge_profile
from genesis_fp16.settings import load_settings
from infrastructure.events.plain_text import plain
from infrastructure.events.profile_report import PhaseCost, ProfileReport, StepCost

_WIDTH = 80
_LONGEST_NAME = 44


def profile(
    agent: Annotated[str, typer.Argument(help="Installed or configured agent.")],
    collect_seconds: Annotated[
        float,
        typer.Option(
            "--collect-seconds", min=0.0, help="Longest time for collecting; 0: use recorded data."
        ),
    ] = 15.0,
    as_json: JsonFlag = False,
) -> None:
    """Show where the time and memory of AGENT's run go, and what to change.

    A child process makes a shortened run on a copy of the agent's folder; nothing is published.
    """
    settings = load_settings()
    from genesis_fp16.daemon.profile import active_agents, run_profile

    with open_existing_store(settings) as store:
        if training := [name for name in active_agents(store) if name != agent]:
            print_warning(f"agents that train now slow it down: {', '.join(training)}")
        report = run_profile(settings, agent, store, collect_seconds=collect_seconds)
    if as_json:
        print_json(
            {
                **report.model_dump(mode="json"),
                "run_wall_seconds": report.run_wall_seconds,
                "run_cpu_seconds": report.run_cpu_seconds,
                "findings": [asdict(finding) for finding in judge_profile(report, agent)],
                "caveats": list(caveats(report)),
            }
        )
        return
    print_report(report, agent)


def print_report(report: ProfileReport, agent: str) -> None:
    """Print *report* and its verdict, in 80 columns."""
    for line in _header(report, agent):
        _print_wrapped(line)
    typer.echo()
    _print_phases(report)
    if report.steps:
        typer.echo()
        _print_steps(report.steps)
        typer.echo()
        _print_operators(_in_force(report))
    typer.echo("\nverdict")
    for finding in judge_profile(report, agent):
        _print_wrapped(finding.text, "  - ")
        if finding.remedy:
            _print_wrapped(finding.remedy, "    -> ")
    for reservation in caveats(report):
        _print_wrapped(reservation, "note: ")


def _header(report: ProfileReport, agent: str) -> Iterator[str]:
    threads = "" if report.device.startswith("cuda") else f", threads {report.threads}"
    state = report.precision
    asked = "" if state.effective == state.requested else f", {state.requested} requested"
    yield (
        f"{agent} on {report.device} ({report.device_name}{threads}), torch "
        f"{report.torch_version}, in {state.effective} ({state.reason}{asked})"
    )
    new = f", {report.collected:,} of them collected here" if report.collected else ""
    yield (
        f"{report.parameters:,} parameters, batches of {report.rows} rows, "
        f"{report.transitions:,} transitions{new}"
    )
    steps = "an unknown number of" if report.total_steps is None else f"{report.total_steps:,}"
    yield (
        f"a whole run: {steps} steps, {report.epochs} evaluations, about "
        f"{report.run_wall_seconds:.3g} s ({report.run_cpu_seconds:.3g} CPU s), computed from "
        f"{report.measured_steps:,} steps"
    )


def _print_phases(report: ProfileReport) -> None:
    cuda = any(phase.peak_cuda_bytes is not None for phase in report.phases)
    rows = []
    for phase in report.phases:
        row = [
            phase.phase,
            _times(phase),
            _seconds(phase.run_cpu_seconds),
            _seconds(phase.run_wall_seconds),
            "" if phase.factor is None else f"{report.share(phase.phase):.1%}",
            _mebibytes(phase.peak_bytes),
        ]
        rows.append([*row, _mebibytes(phase.peak_cuda_bytes)] if cuda else row)
    columns = ["phase", "measured", "CPU s", "wall s", "share", "peak memory"]
    print_table([*columns, "on device"] if cuda else columns, rows)


def _times(cost: PhaseCost) -> str:
    """How much of the phase was measured, out of a whole run."""
    if cost.whole is None:
        return f"{cost.measured:,} of ?"
    if cost.at_most:
        return f"{cost.wall_seconds:.0f} s, at most"
    if cost.whole == cost.measured:
        return "all"
    return f"{cost.measured:,} of {cost.whole:,.0f}"


def _print_steps(steps: tuple[StepCost, ...]) -> None:
    cuda = any(step.busy_share is not None for step in steps)
    rows = []
    for step in steps:
        ratio = "" if step.ratio is None else f"{step.ratio:.2f} ±{step.ratio_error or 0.0:.2f}"
        row = [step.precision, f"{1e3 * step.seconds:.2f} ms", ratio]
        row += [_percent(step.fixed_share), _percent(step.cast_share)]
        products = ", ".join(f"{flops / 1e6:.3g} M {kind}" for kind, flops in _products(step))
        rows.append([*row, *([_percent(step.busy_share)] if cuda else []), products])
    columns = ["step in", "time", "of FP32", "fixed", "casts", *(["busy"] if cuda else [])]
    print_table([*columns, "operations in products"], rows)


def _in_force(report: ProfileReport) -> StepCost:
    """The step in the precision in force."""
    effective = report.precision.effective
    return next((step for step in report.steps if step.precision == effective), report.steps[0])


def _products(step: StepCost) -> list[tuple[str, float]]:
    return sorted(step.product_flops.items(), key=lambda item: -item[1])


def _print_operators(step: StepCost) -> None:
    print_table(
        [f"operator in {step.precision}", "calls", "time", "share"],
        [
            [
                _shortened(operator.name),
                f"{operator.calls:.0f}",
                f"{1e6 * operator.seconds:.0f} us",
                f"{operator.share:.1%}",
            ]
            for operator in step.operators
        ],
    )


def _shortened(name: str) -> str:
    name = plain(name).removeprefix("autograd::engine::evaluate_function: ")
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 3]}..."


def _print_wrapped(text: str, before: str = "") -> None:
    after = " " * len(before)
    for line in textwrap.wrap(
        plain(text), _WIDTH, initial_indent=before, subsequent_indent=after, break_long_words=False
    ):
        typer.echo(line)


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def _mebibytes(count: int | None) -> str:
    return "" if count is None else f"{count / 2**20:,.0f} MiB"

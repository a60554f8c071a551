"""``genesis-fp16 executors``: whether jobs can run where the settings say."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from genesis_fp16.cli.output import JsonFlag, print_json, print_table
from genesis_fp16.settings import load_settings

app = typer.Typer(help="Where workers run: this machine, or a cluster.", no_args_is_help=True)


@app.callback()
def executors() -> None:
    """Where workers run: this machine, or a cluster."""


@app.command("check")
def check(
    wait: Annotated[
        float,
        typer.Option(min=0.0, help="Seconds to wait for a job's report; 0 submits no job."),
    ] = 120.0,
    as_json: JsonFlag = False,
) -> None:
    """Check the engine, and what a job finds on a machine of the cluster.

    Exit code 1 if a run would be lost.
    """
    from genesis_fp16.executors.check import check_executor

    findings = list(check_executor(load_settings(), wait_seconds=wait))
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        print_table(
            ["", "found", "remedy"],
            [
                ["ok" if finding.ok else "fail", finding.what, finding.remedy]
                for finding in findings
            ],
        )
    raise typer.Exit(0 if all(finding.ok for finding in findings) else 1)

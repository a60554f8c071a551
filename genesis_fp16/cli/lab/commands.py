"""The commands of ``genesis-fp16 lab``, in the order of a person's work."""

from __future__ import annotations

import typer

from genesis_fp16.cli.lab.bisect import bisect
from genesis_fp16.cli.lab.compare import compare
from genesis_fp16.cli.lab.freeze import freeze
from genesis_fp16.cli.lab.replay import replay
from genesis_fp16.cli.lab.report import report
from genesis_fp16.cli.lab.sweep import ppo_sweep, sweep

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def options() -> None:
    """Freeze a piece of training, repeat it in any precision, find what half precision costs."""


app.command("compare")(compare)
app.command("freeze")(freeze)
app.command("replay")(replay)
app.command("bisect")(bisect)
app.command("ppo-sweep")(ppo_sweep)
app.command("sweep")(sweep)
app.command("report")(report)
app.command("probe", hidden=True)(compare)  # its name in release 0.1

"""``genesis-fp16 config``: the settings in force."""

from __future__ import annotations

import typer

from genesis_fp16.cli.output import JsonFlag, print_json, print_table, print_warning
from genesis_fp16.settings import load_settings

app = typer.Typer(help="The settings in force.", no_args_is_help=True)


@app.command()
def show(as_json: JsonFlag = False) -> None:
    """Show every setting in force and where it comes from; secrets are redacted."""
    settings = load_settings()
    for warning in (*settings.removed.values(), *settings.unknown.values()):
        print_warning(warning)
    rows = [
        {"name": name, "value": value, "source": source}
        for name, value, source in settings.describe()
    ]
    if as_json:
        print_json(rows)
    else:
        print_table(["setting", "value", "source"], [list(row.values()) for row in rows])

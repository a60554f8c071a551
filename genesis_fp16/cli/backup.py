"""``genesis-fp16 backup`` and ``restore``: the home and its database, also while it serves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from genesis_fp16.cli.output import JsonFlag, print_json
from genesis_fp16.cli.settings import load_location
from genesis_fp16.domain.moments import moment
from genesis_fp16.domain.redaction import visible


def backup(
    folder: Annotated[Path, typer.Argument(help="Folder to write, which does not exist yet.")],
    as_json: JsonFlag = False,
) -> None:
    """Save the home and its database to FOLDER, also while a daemon serves; checked."""
    from genesis_fp16.daemon.backup import back_up

    facts = back_up(load_location(), folder)
    size = sum(file.size for file in facts.files.values()) + facts.database.size
    if as_json:
        told = {"folder": folder, "runs": facts.runs, "files": len(facts.files), "bytes": size}
        print_json({**told, "left_out": facts.left_out})
    else:
        typer.echo(
            f"{folder}: {facts.runs} runs and {len(facts.files)} files, {size / 2**20:.1f} MiB, "
            f"as of {moment(facts.made_at)}; read again and found right"
        )
        if facts.left_out:
            names = ", ".join(visible(name) for name in facts.left_out)
            typer.echo(f"left out, since links are not followed: {names}")


def restore(
    folder: Annotated[Path, typer.Argument(help="Folder that genesis-fp16 backup has written.")],
    as_json: JsonFlag = False,
) -> None:
    """Put the backup in FOLDER back as GENESIS_HOME, which must be empty, and its database."""
    from genesis_fp16.daemon.backup import restore as put_back

    settings = load_location()
    facts, requeued = put_back(settings, folder)
    home = settings.home.absolute()
    if as_json:
        print_json({"home": home, "runs": facts.runs, "requeued": requeued})
    else:
        typer.echo(
            f"{home}: {facts.runs} runs and {len(facts.files)} files, as of "
            f"{moment(facts.made_at)}; {requeued} that were under way go on from their checkpoints"
        )

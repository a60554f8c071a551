"""``genesis-fp16 serve`` and ``run``: the daemon, or one run, in the foreground."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from genesis_fp16.cli.output import JsonFlag, print_json
from genesis_fp16.cli.store import open_existing_store
from genesis_fp16.settings import load_settings


def serve(
    standby: Annotated[
        bool,
        typer.Option(
            "--standby", help="Wait where another daemon leads, and take over when it has ended."
        ),
    ] = False,
) -> None:
    """Start the daemon in the foreground; Ctrl-C checkpoints and stops."""
    settings = load_settings()
    if standby:
        settings = settings.model_copy(update={"standby": True})
    from genesis_fp16.daemon.daemon import serve as serve_until_stopped
    from genesis_fp16.store.database import explain_store_errors

    with explain_store_errors(settings):
        serve_until_stopped(settings)


def predict_server(
    models: Annotated[
        str, typer.Option("--models", help="GENESIS_SHARED_URL of the daemon, e.g. s3://bucket/x.")
    ],
) -> None:
    """Answer running agents on a machine without the daemon, with the models in a bucket."""
    settings = load_settings()
    from genesis_fp16.daemon.predict_server import serve_predictions
    from genesis_fp16.system.bucket import check_bucket_url

    try:
        url = check_bucket_url(models)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--models") from None
    serve_predictions(settings, url)


def run(agent: str, as_json: JsonFlag = False) -> None:
    """Do one run of AGENT now, in the foreground; through the daemon if one serves."""
    settings = load_settings()
    from genesis_fp16.cli.actor import actor
    from genesis_fp16.daemon.foreground import run_once
    from genesis_fp16.store.database import explain_store_errors

    with explain_store_errors(settings):
        code = run_once(settings, agent, actor=actor())
    if as_json:
        with open_existing_store(settings) as store:
            runs = store.runs(agent, limit=1) if store is not None else []
        print_json(asdict(runs[0]) if runs else None)
    raise typer.Exit(code)

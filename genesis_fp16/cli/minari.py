"""``genesis-fp16 minari``: data sets of Minari, in and out."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from genesis_fp16.cli.output import print_line
from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.settings import load_settings
from infrastructure.agent_contract.agent import MisconfiguredError
from infrastructure.files import atomic_file

app = typer.Typer(help="Data sets of Minari, in and out.", no_args_is_help=True)


class DataSetError(GenesisError, ValueError):
    """A data set was not read or not written; the message says why, and what to do."""

    exit_code = os.EX_DATAERR


@app.command("import")
def import_(
    dataset: Annotated[str, typer.Argument(help="Name or folder of a local data set.")],
    records: Annotated[Path, typer.Argument(help="File of records to write, in JSON lines.")],
) -> None:
    """Write the episodes of a data set as records that an agent without code reads."""
    from infrastructure.trajectories.minari_data import MinariError, read_minari

    count = 0
    try:
        with atomic_file(records) as file:
            for transition in read_minari(dataset):
                record = {"id": f"{transition.group}/{count}", **asdict(transition)}
                file.write(json.dumps(record).encode() + b"\n")
                count += 1
    except (MinariError, MisconfiguredError, OSError) as error:
        raise DataSetError(str(error)) from error
    print_line(
        f"{count:,} transitions are in {records}: genesis-fp16 agents add NAME --from {records}"
    )


@app.command("export")
def export(
    agent: Annotated[str, typer.Argument(help="Agent whose transitions to write.")],
    dataset: Annotated[str, typer.Argument(help="Name of the new data set: mine/pendulum-v0.")],
) -> None:
    """Write the transitions of an agent as a data set in Minari's folder."""
    from infrastructure.trajectories import ReplayBuffer
    from infrastructure.trajectories.minari_data import MinariError, write_minari

    folder = load_settings().home.absolute() / "agents" / agent / "replay"
    if not folder.is_dir():
        raise DataSetError(f"{agent} has recorded nothing: {folder} does not exist")
    try:
        episodes = write_minari(dataset, ReplayBuffer(folder).read())
    except (MinariError, MisconfiguredError, OSError) as error:
        raise DataSetError(str(error)) from error
    print_line(f"{dataset} has {episodes:,} episodes")

"""Options that several commands of the lab have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SMALL = "small"
RESULTS = Path("results")
BaseModelOption = Annotated[
    str, typer.Option("--base-model", help="Folder of a model; small is a policy trained here.")
]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]
DeviceOrSettingOption = Annotated[
    str | None,
    typer.Option("--device", help="auto, cpu, cuda or cuda:N; by default GENESIS_DEVICE."),
]
FrozenArgument = Annotated[Path, typer.Argument(help="Folder that lab freeze has written.")]

"""Results of probes, kept in the home: a restart probes only what has changed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import structlog
from pydantic import BaseModel, ConfigDict, ValidationError

from genesis_fp16.plugins.probe.parent import ProbeResult
from infrastructure.files import write_atomically

RESULTS_FILE = "plugins.json"
_MOST_BYTES = 64 << 20

log = structlog.get_logger()


class _Content(BaseModel):
    model_config = ConfigDict(frozen=True)
    format: Literal[1]
    results: list[ProbeResult]


def write_results(home: Path, results: Iterable[ProbeResult]) -> None:
    """Replace the file.

    Raises:
        OSError: It cannot be written.
    """
    write_atomically(
        home / RESULTS_FILE, _Content(format=1, results=list(results)).model_dump_json()
    )


def read_results(home: Path) -> Mapping[str, ProbeResult]:
    """Results by name of the agent; none if there is no file, or it cannot be used."""
    path = home / RESULTS_FILE
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            content = _Content.model_validate_json(file.read(_MOST_BYTES))
    except FileNotFoundError:
        return {}
    except (OSError, ValidationError) as error:
        cause = error.strerror if isinstance(error, OSError) else "its content is not ours"
        log.warning(
            "plugins_file_ignored",
            file=str(path),
            cause=cause,
            effect="every agent is probed again, and the file is replaced",
        )
        return {}
    return {result.plugin.name: result for result in content.results}

"""Results of probes, kept in the home: a restart probes only what has changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import structlog
from pydantic import BaseModel, ConfigDict

from genesis_fp16.plugins.probe.parent import ProbeResult
from infrastructure.files import JsonFileError, read_model, write_model

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
    write_model(home / RESULTS_FILE, _Content(format=1, results=list(results)))


def read_results(home: Path) -> Mapping[str, ProbeResult]:
    """Results by name of the agent; none if there is no file, or it cannot be used."""
    path = home / RESULTS_FILE
    try:
        content = read_model(path, _Content, limit=_MOST_BYTES)
    except FileNotFoundError:
        return {}
    except (OSError, JsonFileError) as error:
        cause = error.strerror if isinstance(error, OSError) else "its content is not ours"
        log.warning(
            "plugins_file_ignored",
            file=str(path),
            cause=cause,
            effect="every agent is probed again, and the file is replaced",
        )
        return {}
    return {result.plugin.name: result for result in content.results}

"""The files of the daemon's home that an attempt begins with."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from pydantic import JsonValue

from genesis_fp16.domain.run_spec import RunSpec

TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}|\.publishing\.lock")  # of a writer, or a process here
_OF_OTHER_RUN = re.compile(r"attempts|checkpoints.*|best-epoch\.pt")
_LONGEST_PATH = 1024  # characters of a text that may name one
_QUOTED = re.compile(r"\"([^\"\n]+)\"|'([^'\n]+)'")


def input_files(spec: RunSpec, home: Path) -> Iterator[Path]:
    """Regular files that the worker of *spec* may read, each once; links are left out.

    They are those of the agent, of the run and of the run that it repeats, the agent's definition,
    and every file or folder in *home* that the agent's settings or its definition name.
    """
    seen: set[Path] = set()
    for path in _all(spec, home):
        if path not in seen:
            seen.add(path)
            yield path


def _all(spec: RunSpec, home: Path) -> Iterator[Path]:
    yield from files_in(spec.agent_folder)
    yield from files_in(spec.run_folder, leave_out=re.compile("attempts|incarnation"))
    if spec.repeats is not None:
        yield from files_in(spec.repeats, leave_out=_OF_OTHER_RUN)
    texts = list(_texts(spec.settings))
    if spec.definition is not None:
        yield spec.definition
        quoted = _QUOTED.findall(spec.definition.read_text(errors="replace"))
        texts += [double_quoted or single_quoted for double_quoted, single_quoted in quoted]
    for text in texts:
        named = home / text if len(text) <= _LONGEST_PATH and "\0" not in text else home
        if named != home and named.is_relative_to(home) and ".." not in named.parts:
            yield from [named] if named.is_file() else files_in(named)


def files_in(folder: Path, *, leave_out: re.Pattern[str] | None = None) -> Iterator[Path]:
    """Regular files at any depth of *folder*, without links and temporary files.

    *leave_out* matches names directly in it.
    """
    for place, folders, names in os.walk(folder):
        is_top = Path(place) == folder
        for group in (folders, names):
            group[:] = [
                name
                for name in sorted(group)
                if not TEMPORARY.fullmatch(name)
                and not (is_top and leave_out is not None and leave_out.fullmatch(name))
            ]
        for name in names:
            path = Path(place, name)
            if stat.S_ISREG(path.lstat().st_mode):
                yield path


def _texts(value: JsonValue) -> Iterator[str]:
    if isinstance(value, str) and value:
        yield value
    elif isinstance(value, dict):
        for nested in value.values():
            yield from _texts(nested)
    elif isinstance(value, list):
        for nested in value:
            yield from _texts(nested)

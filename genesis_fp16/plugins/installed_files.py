"""Whether the files of our distribution are the ones that were installed, and who changed them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import (
    Distribution,
    PackageNotFoundError,
    PackagePath,
    distribution,
    distributions,
)
from pathlib import Path

from genesis_fp16.plugins.discovery import editable_sources
from genesis_fp16.system.own_distribution import AGENTS, LIBRARY

OWN_NAME = "genesis-fp16"
OF_ITS_OWN = "install genesis-fp16 into an environment of its own (python -m venv)"
_PACKAGES = (LIBRARY, AGENTS)
_OWN_FOLDERS = ("genesis_fp16", *_PACKAGES)


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangedFile:
    """A file of our distribution that is not the one that was installed.

    Attributes:
        path: The file, relative to the folder of the distributions.
        missing: Whether it does not exist.
        neighbour: Other distribution that records a file of that path; empty if there is none.
    """

    path: str
    missing: bool
    neighbour: str


def is_own(target: str) -> bool:
    """Whether our own distribution declares an entry point of this *target*."""
    with suppress(PackageNotFoundError):
        points = distribution(OWN_NAME).entry_points
        return any(point.value.partition("[")[0].strip() == target for point in points)
    return False


def changed_files(only: str = "") -> list[ChangedFile]:
    """Compare our installed files with the record that the installer wrote of them.

    An editable installation records none of its sources, and a checkout no file at all.

    Args:
        only: Path of the only file to look at, relative to the folder of the distributions.
    """
    try:
        ours = distribution(OWN_NAME)
    except PackageNotFoundError:
        return []
    recorded = [file for file in ours.files or () if file.parts[0] in _OWN_FOLDERS]
    wrong = [file for file in recorded if only in ("", str(file)) and not _is_intact(file)]
    owners = {} if not wrong else _owners({str(file) for file in wrong}, _folder(ours))
    return [
        ChangedFile(
            path=str(file),
            missing=not Path(str(file.locate())).exists(),
            neighbour=owners.get(str(file), ""),
        )
        for file in wrong
    ]


def neighbours() -> Iterator[tuple[str, str]]:
    """Other distributions with regular packages of our names: each with the package's place."""
    for other in distributions():
        with suppress(Exception):  # what is damaged in metadata of others is reported elsewhere
            name = str(other.metadata["Name"])
            editable = editable_sources(other)
            root = editable or _folder(other)
            for package in _PACKAGES if name != OWN_NAME else ():
                place = root / package / "__init__.py"
                if not place.exists():  # reading all that a distribution records takes longer
                    continue
                if editable or any(
                    str(file) == f"{package}/__init__.py" for file in other.files or ()
                ):
                    yield f"{name} {other.version}", str(place.parent)


def _folder(of: Distribution) -> Path:
    return Path(str(of.locate_file(""))).resolve()


def _owners(paths: set[str], folder: Path) -> dict[str, str]:
    """Other distributions in *folder* by path of *paths* that they record."""
    owners: dict[str, str] = {}
    for other in distributions():
        with suppress(Exception):  # as above
            if other.metadata["Name"] != OWN_NAME and _folder(other) == folder:
                shared = paths.intersection(str(file) for file in other.files or ())
                owners |= dict.fromkeys(shared, f"{other.metadata['Name']} {other.version}")
    return owners


def _is_intact(file: PackagePath) -> bool:
    if file.hash is None:  # the record itself, and what the interpreter compiles
        return True
    try:
        content = Path(str(file.locate())).read_bytes()
    except OSError:
        return False
    digest = hashlib.new(file.hash.mode, content).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=") == file.hash.value

"""``make audit ADVISORIES=FILE``: pinned versions against advisories in a file, without network.

FILE is an export in the OSV format: one JSON record, a list, lines of records, or a zip of them, as
https://osv-vulnerabilities.storage.googleapis.com/PyPI/all.zip. Without it `make audit` asks PyPI
by pip-audit.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

_PIN = re.compile(r"^([A-Za-z0-9_.-]+)==(\S+)$", re.MULTILINE)


def normal(name: str) -> str:
    """*name* of a distribution as PEP 503 writes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(text: str) -> dict[str, str]:
    """Distribution to version, of a file of constraints."""
    return {normal(name): version for name, version in _PIN.findall(text)}


def records(path: Path) -> Iterator[Mapping[str, Any]]:
    """The advisories in the file at *path*.

    Raises:
        ValueError: It is not in one of the forms.
        OSError: It cannot be read.
    """
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.endswith(".json"):
                    yield json.loads(archive.read(name))
        return
    text = path.read_text()
    try:
        content = json.loads(text)
    except ValueError:
        content = [json.loads(line) for line in text.splitlines() if line.strip()]
    yield from content if isinstance(content, list) else [content]


def affects(record: Mapping[str, Any], name: str, version: str) -> bool:
    """Whether the advisory *record* is about that version of the distribution *name*."""
    if record.get("withdrawn"):
        return False
    for affected in record.get("affected", []):
        package = affected.get("package", {})
        if package.get("ecosystem") != "PyPI" or normal(str(package.get("name", ""))) != name:
            continue
        if version in affected.get("versions", []):
            return True
        ranges = [one for one in affected.get("ranges", []) if one.get("type") == "ECOSYSTEM"]
        if any(_in_range(Version(version), one.get("events", [])) for one in ranges):
            return True
    return False


def _in_range(version: Version, events: list[Mapping[str, str]]) -> bool:
    """Whether *version* lies between an event that introduces the fault and one that ends it."""
    inside = False
    for event in sorted(events, key=_place):
        (kind, text), *_ = event.items()
        at = Version("0") if text == "0" else Version(text)
        if kind == "introduced" and version >= at:
            inside = True
        elif (kind == "fixed" and version >= at) or (kind == "last_affected" and version > at):
            inside = False
    return inside


def _place(event: Mapping[str, str]) -> Version:
    try:
        return Version(next(iter(event.values())))
    except InvalidVersion:
        return Version("0")


def main() -> None:
    """Print each advisory about a pinned version; exit with 1 if there is one."""
    parser = argparse.ArgumentParser(prog="make audit", description=__doc__)
    parser.add_argument("advisories", type=Path)
    parser.add_argument("--constraints", type=Path, default=Path("constraints.txt"))
    options = parser.parse_args()
    pinned = pins(options.constraints.read_text())
    found = seen = 0
    try:
        for record in records(options.advisories):
            seen += 1
            for name, version in pinned.items():
                if affects(record, name, version):
                    found += 1
                    summary = str(record.get("summary") or record.get("details") or "")[:120]
                    sys.stdout.write(f"{name} {version}: {record.get('id')}: {summary}\n")
    except (OSError, ValueError) as error:
        sys.exit(f"{options.advisories} cannot be read: {error}")
    if not seen:
        sys.exit(f"{options.advisories} has no advisory: nothing was checked")
    sys.stdout.write(f"{seen} advisories, {len(pinned)} pinned versions: {found} apply\n")
    sys.exit(found > 0)


if __name__ == "__main__":
    main()

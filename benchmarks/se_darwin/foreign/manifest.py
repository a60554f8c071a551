"""Manifests: where each bug of a source is found, and the hashes of its texts."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from benchmarks.se_darwin.foreign.bug import ForeignBug

FOLDER = Path(__file__).parent / "manifests"


class Digests(BaseModel):
    """SHA-256 of the texts of a bug, in hexadecimal digits."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    program: str
    visible_tests: str
    hidden_tests: str

    @classmethod
    def of(cls, bug: ForeignBug) -> Digests:
        """The digests of *bug*."""
        texts = (bug.code, bug.test_code, bug.hidden_test_code)
        program, visible, hidden = (hashlib.sha256(text.encode()).hexdigest() for text in texts)
        return cls(program=program, visible_tests=visible, hidden_tests=hidden)


class Entry(BaseModel):
    """Where a bug is found.

    Attributes:
        name: Name of the bug.
        repository: URL of the repository.
        commit: Commit from which it is read; of a fix, the fix.
        path: Path of the program; the part after an archive's path is within the archive.
        function: Function to repair.
        tests_path: Path of the test module; empty if the tests are elsewhere.
        changed_lines: Lines of the function in normal form that the fix changes; 0 if unknown.
        visible: Positions of the visible tests among all.
        compared: Whether further calls are compared with those of the right program.
        sha256: Hashes of the texts.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str
    repository: str
    commit: str
    path: str
    function: str
    tests_path: str = ""
    changed_lines: int = 0
    visible: list[int] = []
    compared: bool = True
    sha256: Digests


class Manifest(BaseModel):
    """The bugs of a source.

    Attributes:
        source: Name of the source.
        made: How its bugs were made, and how these were chosen.
        bugs: The bugs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    source: str
    made: str
    bugs: list[Entry]

    @classmethod
    def read(cls, source: str) -> Manifest:
        """Read the manifest of *source*.

        Raises:
            ValueError: It has none yet.
        """
        file = FOLDER / f"{source}.json"
        if not file.is_file():
            raise ValueError(
                f"{file} does not exist: run python -m benchmarks.se_darwin.foreign.choosing "
                f"--source {source} --clones FOLDER"
            )
        return cls.model_validate_json(file.read_text())

    def write(self) -> None:
        """Write the manifest to its place in the repository."""
        FOLDER.mkdir(exist_ok=True)
        (FOLDER / f"{self.source}.json").write_text(self.model_dump_json(indent=1) + "\n")

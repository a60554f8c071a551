from __future__ import annotations

from pathlib import Path

import pytest


class Skipped(list[tuple[str, int, str]]):
    """Reports of a reader: file name, line, reason."""

    def __call__(self, path: Path, line: int, reason: str) -> None:
        self.append((path.name, line, reason))


@pytest.fixture
def skipped() -> Skipped:
    return Skipped()


@pytest.fixture
def genesis() -> Path:
    """Genesis' own files, where they lie beside this repository."""
    folder = Path(__file__).parents[5] / "shared" / "data" / "genesis"
    if not folder.is_dir():
        pytest.skip("Genesis' own records are not beside this repository (../shared/data/genesis)")
    return folder

"""Where the repository is, and which of its files are ours."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

UNTRACKED = {"build", "dist", "benchmark_results", "__pycache__", "generated", "site"}


def _walk(folder: Path) -> Iterator[Path]:
    for entry in os.scandir(folder):
        hidden = entry.name.startswith(".") and entry.name not in {".ci", ".env.example"}
        if hidden or entry.name in UNTRACKED or entry.name.endswith(".egg-info"):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path))
        else:
            yield Path(entry.path)


@pytest.fixture(scope="session")
def root() -> Path:
    return Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def files(root: Path) -> Callable[..., list[Path]]:
    """Our files with one of the given suffixes, below the given folders (or everywhere)."""
    everything = sorted(_walk(root))

    def select(*suffixes: str, below: tuple[str, ...] = ()) -> list[Path]:
        return [
            path
            for path in everything
            if (not suffixes or path.suffix in suffixes)
            and (not below or path.relative_to(root).parts[0] in below)
        ]

    return select


def _guides(root: Path) -> list[Path]:
    pages = sorted((root / "docs").rglob("*.md"))
    return [page for page in pages if page.parent.name not in UNTRACKED]


@pytest.fixture(scope="session")
def pages(root: Path) -> list[Path]:
    """What an operator or an author reads."""
    return [root / "README.md", *_guides(root), root / ".env.example"]

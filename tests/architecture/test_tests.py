"""Tests mirror the modules: each module has a test file at its path, or a tested module runs it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOMS = ("genesis_fp16", "infrastructure", "agents")
# Loaded without their names: the program that each sandbox starts, and what Alembic finds.
STARTED = (
    "agents.se_darwin.fork_server.server",
    "genesis_fp16.store.migrations.",
    "genesis_fp16.telemetry.__main__",
)


def _used(path: Path, package: str) -> Iterator[str]:
    """Dotted names that *path*, in *package*, imports or starts by name as ``python -m`` does."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level else ""
            module = ".".join(filter(None, (above, node.module)))
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
            yield f"{node.value}.__main__"


def _dotted(path: Path, root: Path) -> str:
    name = ".".join(path.relative_to(root).with_suffix("").parts)
    return name.removesuffix(".__init__")


def _has_test_file(path: Path, root: Path) -> bool:
    mirror = path.relative_to(root).with_name(f"test_{path.stem.strip('_')}.py")
    return (root / "tests" / mirror).exists()


@pytest.fixture(scope="module")
def modules(root: Path) -> dict[str, Path]:
    """Every module of ours by its dotted name."""
    paths = [path for room in ROOMS for path in (root / room).rglob("*.py")]
    return {_dotted(path, root): path for path in sorted(paths)}


def test_each_module_has_its_test_file_or_is_run_by_a_tested_one(
    root: Path, modules: dict[str, Path]
) -> None:
    reached = {name for path in (root / "tests").rglob("*.py") for name in _used(path, "")}
    reached |= {name for name, path in modules.items() if _has_test_file(path, root)}
    reached |= {name for name in modules if name.startswith(STARTED)}
    waiting = [name for name in modules if name in reached]
    while waiting:
        name = waiting.pop()
        package = _dotted(modules[name].parent, root)
        for used in set(_used(modules[name], package)) & modules.keys() - reached:
            reached.add(used)
            waiting.append(used)
    packages = {name for name, path in modules.items() if path.name == "__init__.py"}
    assert sorted(modules.keys() - reached - packages) == []

"""The distribution: small, of the standard library only, for Python 3.9, beside any neighbour."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import genesis_client
import pytest

import genesis_fp16
from benchmarks.client.installation import wheel_bytes

CLIENT = Path(__file__).parents[3] / "clients" / "python"
MODULES = sorted((CLIENT / "genesis_client").glob("*.py"))
OLDEST = "python3.9"
BESIDE = Path(sys.base_prefix).parent.glob(f"3.9*/bin/{OLDEST}")  # as pyenv has them
INTERPRETERS = {sys.executable, *map(str, BESIDE), *filter(None, [shutil.which(OLDEST)])}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_modules_are_of_python_3_9_and_import_its_library_only(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add(str(node.module).split(".")[0])
    assert imported <= {*sys.stdlib_module_names, "genesis_client"}


def test_it_needs_nothing_and_has_the_version_of_the_daemon() -> None:
    project = (CLIENT / "pyproject.toml").read_text()
    assert "\ndependencies = []\n" in project
    assert 'requires-python = ">=3.9"' in project
    assert genesis_client.__version__ == genesis_fp16.__version__


@pytest.mark.process
@pytest.mark.parametrize(
    "interpreter", sorted(path for path in INTERPRETERS if "shims" not in Path(path).parts)
)
def test_it_works_beside_other_packages_of_our_names(tmp_path: Path, interpreter: str) -> None:
    """Also on the oldest Python, where there is one."""
    for name in ("agents", "infrastructure", "genesis_fp16"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('not for the client')")
    script = f"""
import sys, json
from genesis_client import Agent
agent = Agent("qa", home={str(tmp_path)!r}, spool={str(tmp_path)!r})
with agent.choose({{"x": 1.0}}, [{{"a": 1}}, {{"a": 2}}]) as decision:
    decision.report(reward=1.0)
print(json.dumps([decision.position, agent.status.waiting_bytes > 0, sorted(sys.modules)]))
"""
    path = os.pathsep.join(map(str, (tmp_path, CLIENT)))
    done = subprocess.run(
        [interpreter, "-c", script],
        env={"PYTHONPATH": path, "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    position, kept, modules = json.loads(done.stdout)
    assert (position, kept) == (0, True)
    assert {"agents", "infrastructure", "genesis_fp16", "asyncio", "ssl"}.isdisjoint(modules)


@pytest.mark.process
def test_the_wheel_is_small(tmp_path: Path) -> None:
    assert 10_000 < wheel_bytes(tmp_path) < 40_000

"""On a machine that must lack nothing, a skip is a failure: unless it is for want of CUDA."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

TESTS = """
import pytest

@pytest.mark.skipif(True, reason="needs a CUDA device")
def test_on_cuda(): ...

def test_with_a_server():
    pytest.skip("PostgreSQL is not installed")

@pytest.mark.xfail(reason="known")
def test_that_is_known_to_fail():
    assert False
"""


def _run(folder: Path, *options: str) -> tuple[int, str]:
    arguments = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, folder]
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(Path(__file__).parents[2]),  # of what the copied conftest imports
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    done = subprocess.run(
        arguments, cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout


def test_a_skip_fails_where_asked(root: Path, tmp_path: Path) -> None:
    shutil.copy(root / "tests" / "conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_these.py").write_text(TESTS)
    (tmp_path / "test_module.py").write_text("import pytest\npytest.importorskip('no_such')\n")

    code, said = _run(tmp_path)
    assert (code, "3 skipped, 1 xfailed" in said) == (0, True), said

    code, said = _run(tmp_path, "--fail-on-skip", "--continue-on-collection-errors")
    assert code == 1
    assert "1 failed, 1 skipped, 1 xfailed, 1 error" in said
    assert "PostgreSQL" in said
    assert "'no_such'" in said

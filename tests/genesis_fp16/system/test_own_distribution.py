"""Every room that runs as a process of its own finds our library, whatever PYTHONPATH names."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def stranger(tmp_path: Path) -> Path:
    """A folder with regular packages of our names."""
    for name in ("infrastructure", "infrastructure/training", "agents"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('of others')\n")
    return tmp_path


def imported(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={"PYTHONPATH": f"{folder}:{folder / 'nothing-here'}"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("room", ["cli", "worker", "api", "plugins", "predictor"])
def test_a_process_of_ours_and_its_children_take_our_library(room: str, stranger: Path) -> None:
    code = (
        f"import os, genesis_fp16.{room}, infrastructure.events as events\n"
        "print(events.__file__, os.environ['PYTHONPATH'])"
    )
    done = imported(code, stranger)
    expected = ROOT / "infrastructure" / "events" / "__init__.py"
    assert done.stdout.split() == [str(expected), str(stranger / "nothing-here")], done.stderr


@pytest.mark.parametrize("room", ["domain.run", "settings", "store"])
def test_a_process_of_others_keeps_its_own_and_is_told(room: str, stranger: Path) -> None:
    (stranger / "infrastructure" / "__init__.py").write_text("theirs = True\n")
    code = (
        f"try:\n    import genesis_fp16.{room}\nexcept ImportError as error:\n    print(error)\n"
        "import infrastructure\nassert infrastructure.theirs"
    )
    done = imported(code, stranger)
    assert f"is {stranger / 'infrastructure' / '__init__.py'}, not the library" in done.stdout
    assert "genesis-client" in done.stdout
    assert done.returncode == 0, done.stderr


def test_a_process_that_has_imported_another_library_is_told(stranger: Path) -> None:
    (stranger / "infrastructure" / "__init__.py").write_text("")
    done = imported("import infrastructure, genesis_fp16.cli", stranger)
    assert "ForeignLibraryError: 'infrastructure' in this process is" in done.stderr

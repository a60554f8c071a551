"""What the tests fork instead of starting it really is spared the imports."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.preloaded import ForkedPopen

LOOK = "import sys; print({'torch', 'genesis_fp16.daemon.daemon'} <= sys.modules.keys())"


def test_what_is_forked_has_imported_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the server starts there if no test has started it before
    command = [sys.executable, "-P", "-c", LOOK]
    with ForkedPopen(command, stdout=subprocess.PIPE, text=True) as forked:
        assert forked.communicate(timeout=300)[0] == "True\n"

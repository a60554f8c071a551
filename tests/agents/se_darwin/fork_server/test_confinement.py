"""Each layer alone, in a process of its own, which cannot remove it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.process


def test_landlock_alone_opens_no_file_that_all_may_read(
    tmp_path: Path, run_confined: Callable[[str, str], str]
) -> None:
    readable = tmp_path / "readable"
    readable.touch(mode=0o644)
    assert (
        run_confined("confinement.enter_landlock", f"open({str(readable)!r})") == "PermissionError"
    )
    assert run_confined("confinement.enter_landlock", "os.listdir('/')") == "PermissionError"

"""Files of an attempt on storage that fails."""

from pathlib import Path

from genesis_fp16.executors.job_files import is_claimed


def test_while_storage_fails_an_attempt_is_not_known_to_be_claimed(tmp_path: Path) -> None:
    assert not is_claimed(tmp_path / ("x" * 300))  # no file system takes such a name

"""Which errors mean that a disk is full."""

import errno

from genesis_fp16.system.disk import find_disk_full


def test_a_full_disk_is_found_behind_other_errors() -> None:
    full = OSError(errno.EDQUOT, "Quota exceeded")
    wrapped = RuntimeError("cannot save")
    wrapped.__cause__ = full
    last = ValueError("and cannot say so")
    last.__context__ = wrapped
    assert find_disk_full(last) is full


def test_other_errors_are_not_about_a_full_disk() -> None:
    assert find_disk_full(OSError(errno.EACCES, "Permission denied")) is None
    assert find_disk_full(None) is None

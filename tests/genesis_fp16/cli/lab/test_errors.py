"""What a person reads after a mistake: one message for errors of the library and of the disk."""

from pathlib import Path

import pytest

from genesis_fp16.cli.lab.errors import LabFailedError, plain_errors
from infrastructure.events.role_precision import find_preset
from infrastructure.precision_lab import LabError


def _raise_lab_error():
    raise LabError("there is no such folder")


@pytest.mark.parametrize(
    ("fails", "message"),
    [
        (_raise_lab_error, "no such folder"),
        (lambda: find_preset("bf16_pur"), "'bf16_pur': .*bf16_pure"),
        (Path("/nowhere/manifest.json").read_bytes, "No such file"),
        (lambda: Path("/dev/full").write_bytes(b"x"), "No space left.* are kept"),
    ],
)
def test_an_error_of_the_library_is_one_message(fails, message):
    with pytest.raises(LabFailedError, match=message), plain_errors():
        fails()


def test_a_defect_stays_a_defect():
    with pytest.raises(ZeroDivisionError), plain_errors():
        _ = 1 / 0

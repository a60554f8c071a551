"""The commands of the precision lab: what they print, and what a person reads after a mistake."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from genesis_fp16.cli.app import app
from genesis_fp16.cli.lab import LabFailedError, plain_errors
from infrastructure.events.role_precision import find_preset
from infrastructure.precision_lab import LabError


def _raise_lab_error():
    raise LabError("there is no such folder")


@pytest.mark.parametrize(
    ("fails", "message"),
    [
        (_raise_lab_error, "there is no such folder"),
        (lambda: find_preset("bf16_pur"), "unknown preset 'bf16_pur': did you mean bf16_pure"),
        (Path("/nowhere/manifest.json").read_bytes, "No such file"),
    ],
)
def test_an_error_of_the_library_is_one_message(fails, message):
    with pytest.raises(LabFailedError, match=message), plain_errors():
        fails()


def test_a_defect_stays_a_defect():
    with pytest.raises(ZeroDivisionError), plain_errors():
        _ = 1 / 0


def test_the_probe_names_a_folder_that_is_missing(tmp_path):
    wrong = CliRunner().invoke(app, ["lab", "probe", "--base-model", str(tmp_path / "nowhere")])
    assert isinstance(wrong.exception, LabFailedError)
    assert "is not a folder on this machine" in str(wrong.exception)

"""``lab compare``: a model that is not there."""

from genesis_fp16.cli.lab.errors import LabFailedError


def test_the_probe_names_a_folder_that_is_missing(ask, tmp_path):
    wrong = ask("lab", "compare", "--base-model", str(tmp_path / "nowhere"))
    assert isinstance(wrong.exception, LabFailedError)
    assert "nowhere is not a folder" in str(wrong.exception)

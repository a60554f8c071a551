"""``lab report``: its files, its sentences, and a folder without results."""

import json

import pytest

from genesis_fp16.cli.lab.errors import LabFailedError


def test_the_report_of_a_bisection_is_written(ask, tmp_path):
    pytest.importorskip("jinja2")
    (tmp_path / "bisect.json").write_text(json.dumps({"culprits": [{"place": "kl::reduction"}]}))
    (tmp_path / "replay").mkdir()
    (tmp_path / "replay" / "bf16_pure.json").write_text("{")
    done = ask("lab", "report", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert "most at kl::reduction" in done.stdout
    assert "warning: " in done.stderr
    assert (tmp_path / "report.html").is_file()


def test_a_folder_without_results_is_refused(ask, tmp_path):
    wrong = ask("lab", "report", str(tmp_path))
    assert isinstance(wrong.exception, LabFailedError)
    assert "no result" in str(wrong.exception)

"""The whole command, on a CPU."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.gpu.__main__ import main
from benchmarks.gpu.claims import CLAIMS
from benchmarks.gpu.plan import SECTIONS
from tests.patience import crowding

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("_adopting")]


@pytest.mark.usefixtures("_forked_sections")
def test_a_rehearsal_writes_a_page_and_a_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = [replace(each, seconds=each.seconds * crowding()) for each in SECTIONS]
    monkeypatch.setattr("benchmarks.gpu.__main__.SECTIONS", patient)
    arguments = ["--rehearse", "--sections", "nccl", "steps-large", "--output", str(tmp_path)]
    arguments += ["--minutes", str(10 * crowding())]
    assert main(arguments) == 0
    written = json.loads((tmp_path / "gpu.json").read_text())
    assert written["rehearsal"] is True
    assert {"device", "torch", "commit", "started"} <= set(written["machine"])
    assert len(written["claims"]) == len(CLAIMS)
    claims = {each["name"]: each for each in written["claims"]}
    # Two real ranks, over gloo here.
    step = claims["nccl-one-step"]
    assert step["outcome"] == "proven", step
    assert step["place"].startswith("docs/how-to/distributed.md:")
    assert len(step["figures"]) == 6
    assert claims["nccl-skip-together"]["outcome"] == "proven"
    assert claims["memory-large"]["reason"] == "large is too large for a CPU"
    assert claims["accuracy"]["reason"] == "the section accuracy was not asked for"
    page = (tmp_path / "gpu.md").read_text()
    assert "nothing about CUDA" in page
    assert f"0 refuted, 2 proven, {len(CLAIMS) - 2} not measurable." in page
    assert "| nccl | " in page


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_without_a_gpu_it_ends_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--output", str(tmp_path / "none")]) == 3
    said = capsys.readouterr().err
    assert said.startswith("nothing to measure on")
    assert "--rehearse" in said
    assert not (tmp_path / "none").exists()

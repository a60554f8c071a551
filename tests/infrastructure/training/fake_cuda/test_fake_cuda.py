"""The trainer's CUDA paths without CUDA: fake tensors of ``cuda:0`` have a device and no data.

A read of the device has nothing to return and raises, so a step that ends has read nothing.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.process
HERE = Path(__file__).parent
MODULE = "tests.infrastructure.training.fake_cuda.rehearsal"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the rehearsal prints."""
    if torch.version.cuda is not None:
        pytest.skip("this torch has CUDA: the real device is tested")
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("a CUDA driver of nothing but names needs g++")
    folder, driver = Path(torch.__file__).parent, tmp_path_factory.mktemp("driver") / "driver.so"
    paths = [f"-I{folder / 'include'}", f"-L{folder / 'lib'}"]
    build = [compiler, "-O0", "-w", "-std=c++20", "-shared", "-fPIC", *paths]
    subprocess.run(
        [*build, str(HERE / "driver.cpp"), "-o", str(driver), "-lc10", "-ltorch_cpu"], check=True
    )
    done = subprocess.run(
        [sys.executable, "-m", MODULE, str(driver)],
        cwd=HERE.parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_no_step_on_cuda_reads_the_device_in_any_precision(found: dict[str, Any]) -> None:
    assert (found["device"], found["fused_refused"]) == ("cuda:0", None)
    assert found["step_reads"] == {"fp16": False, "fp32": False, "bf16": False}
    assert found["accumulated_reads"] is False
    computes_in = {"fp16": "torch.float16", "fp32": "torch.float32", "bf16": "torch.bfloat16"}
    assert found["computes_in"] == computes_in


def test_a_read_in_a_step_is_noticed_there(found: dict[str, Any]) -> None:
    assert found["planted_read_reads"] is True
    assert found["textbook_reads"] is True, "an optimizer without one pass reads a flag"
    assert found["backward_and_step_reads"] is True, "it is documented to wait"
    assert found["stats_read"] is True


def test_telemetry_copies_without_a_read_and_reads_the_copy_later(found: dict[str, Any]) -> None:
    assert (found["telemetry_reads"], found["telemetry_copies"]) == (False, ["recorded"])
    assert found["telemetry_poll_reads"] is True


def test_checkpoints_and_graphs_stay_on_the_device(found: dict[str, Any]) -> None:
    assert found["weights_on"] == ["cuda:0"]
    assert "cuda:0" in found["moments_on"]
    assert found["loaded_reads"] is False
    assert (found["graph_reads"], found["graph_recorded"]) == (False, 1)
    assert (found["graph_with_a_read_reads"], found["graph_with_a_read_recorded"]) == (True, 0)

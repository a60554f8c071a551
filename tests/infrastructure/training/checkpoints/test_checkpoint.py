from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infrastructure.training.checkpoints import CheckpointFolder
from infrastructure.training.checkpoints.checkpoint import (
    CheckpointError,
    read_checkpoint,
    write_checkpoint,
)
from infrastructure.training.distributed import Ranks
from tests.preloaded import ForkedPopen

CPU = torch.device("cpu")


def test_round_trip(tmp_path: Path):
    path = tmp_path / "sub" / "a.pt"
    size = write_checkpoint(path, {"t": torch.arange(3), "n": [1, (2, None)]})
    state = read_checkpoint(path, CPU)
    assert size == path.stat().st_size
    assert torch.equal(state["t"], torch.arange(3))
    assert state["n"] == [1, (2, None)]


@settings(max_examples=min(60, settings.default.max_examples))
@given(data=st.data())
def test_any_damage_is_an_error_that_names_file_and_remedy(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("c") / "a.pt"
    write_checkpoint(path, {"t": torch.arange(64)})
    victim = data.draw(st.sampled_from([path, path.with_name("a.pt.json")]))
    content = bytearray(victim.read_bytes())
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    if victim.suffix == ".json" and _same_meaning(content, victim):
        return
    victim.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"a\.pt .*delete it"):
        read_checkpoint(path, CPU)


def _same_meaning(content, manifest):
    try:
        return json.loads(content) == json.loads(manifest.read_text())
    except ValueError:
        return False


class Evil:
    def __reduce__(self):
        return (os.system, (f"touch {os.environ['EVIL_FOLDER']}/owned",))


@pytest.mark.parametrize(("content", "named"), [(Evil(), "system"), ({"x": Path()}, "pathlib")])
def test_nothing_is_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: object, named: str
):
    monkeypatch.setenv("EVIL_FOLDER", str(tmp_path))
    path = tmp_path / "evil.pt"
    write_checkpoint(path, {})
    torch.save(content, path)
    manifest = path.with_name("evil.pt.json")
    written = path.read_bytes()
    manifest.write_text(
        json.dumps(
            {"format": 1, "bytes": len(written), "sha256": hashlib.sha256(written).hexdigest()}
        )
    )
    with pytest.raises(CheckpointError, match=rf"cannot be loaded \(.*{named}") as refused:
        read_checkpoint(path, CPU)
    assert not (tmp_path / "owned").exists()
    assert "weights_only" not in str(refused.value), "torch's advice to unpickle it"
    assert "safe_globals" not in str(refused.value), "nor how to allow it"
    assert refused.value.__suppress_context__, "nor in the traceback"


def test_newest_first_and_only_the_newest_kept(tmp_path: Path):
    folder = CheckpointFolder(tmp_path, keep=2, device=CPU, ranks=Ranks())
    for step in (5, 20, 100):
        folder.save(step, {"step": step})
    (tmp_path / "step-0000000200.pt").write_bytes(b"no manifest: not finished")
    assert [p.stem for p in folder.paths()] == ["step-0000000100", "step-0000000020"]
    newest = folder.newest({}, pytest.fail)
    assert newest is not None
    assert newest[1] == {"step": 100}


_WRITER = """
import sys, torch
from pathlib import Path
from infrastructure.training.checkpoints import CheckpointFolder
from infrastructure.training.distributed import Ranks
folder, step = CheckpointFolder(Path(sys.argv[1]), 2, torch.device("cpu"), Ranks()), 0
while True:
    step += 1
    folder.save(step, {"t": torch.full((50_000,), step)})
    print(step, flush=True)
"""


@pytest.mark.process
def test_a_killed_writer_leaves_a_readable_checkpoint(tmp_path: Path):
    for _ in range(3):
        with ForkedPopen(
            [sys.executable, "-P", "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            written = [int(writer.stdout.readline()) for _ in range(3)][-1]
            os.kill(writer.pid, signal.SIGKILL)
        newest = CheckpointFolder(tmp_path, 2, CPU, Ranks()).newest({}, pytest.fail)
        assert newest is not None
        state = newest[1]
        assert int(state["t"][0]) >= written

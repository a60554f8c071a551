"""Published models in the process that uses them."""

import math
import threading
from pathlib import Path

import numpy as np
import pytest

from genesis_fp16 import models
from genesis_fp16.models import NoModelError
from infrastructure.agent_contract import Transition
from infrastructure.agent_contract.transition import Box, Discrete, TransitionSpec
from infrastructure.world_model import WorldModel
from infrastructure.world_model.onnx_export import onnx_inputs

SPEC = TransitionSpec(
    observation={"load": Box()},
    action={"tool": Discrete(values=("x", "y"))},
    targets={"reward": Box()},
)
TOOLS = [{"tool": "x"}, {"tool": "y"}]


def publish(folder: Path, best: str) -> WorldModel:
    """Publish a model that prefers the tool *best*."""
    rows = [
        Transition(
            group=str(number),
            observation={"load": number / 80},
            action={"tool": tool},
            reward=float(tool == best) + number % 3 / 10,
        )
        for number in range(80)
        for tool in "xy"
    ]
    model = WorldModel(SPEC, members=1, hidden=4)
    model.fit(rows, epochs=2, device="cpu", precision="fp32")
    model.save(folder / "published")
    return model


def test_it_follows_what_is_published(tmp_path: Path) -> None:
    folder = tmp_path / "agents" / "qa"
    opened = models.open("qa", tmp_path)
    assert opened.version is None
    with pytest.raises(NoModelError, match="agents has no folder of this agent"):
        opened.rank({"load": 0.5}, TOOLS)
    folder.mkdir(parents=True)
    with pytest.raises(NoModelError, match="no model is published yet"):
        opened.rank({"load": 0.5}, TOOLS)
    made = publish(folder, "x")
    first = opened.version
    assert first is not None
    assert opened.rank({"load": 0.5}, TOOLS) == [0, 1]
    expected = made.predict_batch([{"load": 0.5}], TOOLS[:1])
    assert opened.predict_batch([{"load": 0.5}], TOOLS[:1]) == expected
    for wrong, problem in (
        ({"load": math.inf}, "observation 'load' must be finite, .* got inf"),
        ({"load": np.float32("-inf")}, "observation 'load' must be finite"),
        ({"load": "much"}, "observation 'load' must be numbers"),
        (None, "observation must be a mapping of fields, got NoneType"),
    ):
        with pytest.raises(ValueError, match=problem):
            opened.rank(wrong, TOOLS)  # type: ignore[arg-type]  # on purpose
        with pytest.raises(ValueError, match=problem):
            opened.predict_batch([wrong], TOOLS[:1])  # type: ignore[list-item]  # on purpose
    with pytest.raises(ValueError, match="action must be a mapping"):
        opened.rank({"load": 0.5}, ["x"])  # type: ignore[list-item]  # on purpose
    assert onnx_inputs(opened.fitted, [{"load": 0.5}], TOOLS[:1])["action.tool"] == [0]
    publish(folder, "y")
    assert opened.rank({"load": 0.5}, TOOLS) == [1, 0]
    second = opened.version
    assert second not in (None, first)
    (folder / "published" / "model.json").write_text("{")
    assert opened.rank({"load": 0.5}, TOOLS) == [1, 0], "a damaged one is not used"
    assert opened.version == second


def test_threads_may_share_it(tmp_path: Path) -> None:
    publish(tmp_path / "agents" / "qa", "x")
    opened, ranked = models.open("qa", tmp_path), list[list[int]]()

    def ask() -> None:
        ranked.extend(opened.rank({"load": 0.5}, TOOLS) for _ in range(20))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ranked == [[0, 1]] * 80


def test_a_path_is_no_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a name"):
        models.open("../qa", tmp_path)
    with pytest.raises(FileNotFoundError, match="nowhere: give the daemon's GENESIS_HOME"):
        models.open("qa", tmp_path / "nowhere")

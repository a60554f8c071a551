"""``genesis-fp16 models export``: onnxruntime computes what the published model predicts."""

import json
import random
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

from genesis_fp16 import models
from genesis_fp16.cli.app import app
from genesis_fp16.settings import load_settings
from infrastructure.agent_contract.transition import TransitionSpec
from infrastructure.world_model import WorldModel
from infrastructure.world_model.onnx_export import onnx_inputs
from tests.docs.test_ask_a_model import onnx_block
from tests.genesis_fp16.new_store import new_store
from tests.infrastructure.world_model.onnx_export.test_graph import (
    FIELDS,
    TARGETS,
    check,
    fitted,
    recorded,
)

SPEC = TransitionSpec(
    observation=FIELDS,  # the number is no target, and so has bins
    action={"label": FIELDS["label"]},
    targets={name: TARGETS[name] for name in ("done", "vector", "reward")},
    success=("done", "yes"),
)


@pytest.mark.process
@pytest.mark.timeout(300)
def test_an_exported_model_predicts_alike(folder):
    rng = random.Random(0)
    fitted(SPEC, recorded(SPEC, 2400, rng)).save(
        load_settings().home / "agents/se-darwin/published"
    )
    new_store(load_settings()).close()
    result = CliRunner().invoke(app, ["models", "export", "se-darwin", "--to", "qa.onnx"])
    assert result.exit_code == 0, result.output
    assert "qa.onnx.json describes its inputs" in result.output
    description = json.loads((folder / "qa.onnx.json").read_text())
    assert description["inputs"]["observation.label"]["labels"] == ["a", "b", "c"]
    runtime = pytest.importorskip("onnxruntime", reason="the extra dev has it")
    session = runtime.InferenceSession("qa.onnx")
    world_model = WorldModel.load(load_settings().home / "agents/se-darwin/published")
    assert world_model.fitted_model.encoder.bins("observation.number") is not None
    for rows in (1, 2, 50):
        tried = recorded(SPEC, rows, rng)
        observations, actions = [row.observation for row in tried], [row.action for row in tried]
        arrays = onnx_inputs(world_model.fitted_model, observations, actions)
        assert {each.name for each in session.get_inputs()} == set(arrays)
        outputs = dict(zip(description["outputs"], session.run(None, arrays), strict=True))
        assert not any(np.isnan(outputs["confidence"]))
        check(outputs, world_model, observations, actions)
    (row,) = recorded(SPEC, 1, rng)
    names = {"model": models.open("se-darwin", load_settings().home), "ticket": row.observation}
    names |= {"replies": [row.action, {"label": "a"}]}
    exec(onnx_block().replace("support.onnx", "qa.onnx"), names)
    check(names["outputs"], world_model, [row.observation] * 2, names["replies"])


def test_without_a_model_the_command_says_so(folder):
    new_store(load_settings()).close()
    shutil.rmtree(load_settings().home / "agents", ignore_errors=True)
    result = CliRunner().invoke(app, ["models", "export", "se-darwin"])
    assert result.exit_code != 0
    assert "no model of se-darwin is published yet" in str(result.exception)

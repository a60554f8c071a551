"""The commands of the precision lab: what they print, and what a person reads after a mistake."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from genesis_fp16.cli.app import app
from genesis_fp16.cli.lab import LabFailedError, plain_errors
from genesis_fp16.daemon.agent_task import AgentTaskError
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
        (lambda: Path("/dev/full").write_bytes(b"x"), "No space left.*finished results are kept"),
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


def ask(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["lab", *map(str, arguments)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["replay", "nowhere", "--preset", "bf16_pure"], "nowhere: holds no frozen experiment"),
        (["freeze", "new", "--agent", "a", "--base-model", "small"], "exclude each other"),
        (["freeze", "full", "--base-model", "small"], "full: is not empty"),
        (["freeze", "new", "--base-model", "nowhere"], "nowhere is not a folder on this machine"),
    ],
)
def test_a_mistake_is_one_message(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    result = ask(*arguments)
    assert isinstance(result.exception, LabFailedError)
    assert message in str(result.exception)


LINE = """
import torch
from torch import nn
from infrastructure.agent_contract import *


class LineAgent:
    name = "line"
    contract_version = 1

    def schedule(self):
        return Schedule(every_seconds=3600)

    def settings_model(self):
        return None

    def collect(self, context):
        for number in range(6):
            yield Transition(group=f"g{number}", observation={"x": float(number)}, action={})

    def build_job(self, context, transitions):
        x = torch.tensor([[t.observation["x"]] for t in transitions])
        if len(x) == 0:
            from infrastructure.agent_contract.agent import InsufficientDataError
            raise InsufficientDataError("transitions", 0, 1)

        def loss(forward, batch):
            return torch.nn.functional.mse_loss(forward(batch["x"]), 2 * batch["x"])

        return TrainingJob(
            model=nn.Sequential(nn.Linear(1, WIDTH), nn.SiLU(), nn.Linear(WIDTH, 1)),
            optimizer=lambda parameters: torch.optim.AdamW(parameters, fused=True),
            batches=lambda epoch: [{"x": x + epoch}] * 4,
            loss=loss,
            evaluate=lambda forward: None,
            epochs=1,
        )

    def publish(self, context, model, report):
        raise AssertionError("nothing is published")
"""


@pytest.mark.process
@pytest.mark.usefixtures("forked")
def test_the_world_model_of_an_agent_is_frozen_and_repeated_in_a_worker(
    install_plugin: Callable[..., None], folder: Path
) -> None:
    (folder / ".env").write_text("GENESIS_DEVICE=cpu\nGENESIS_AGENTS__SE_DARWIN__ENABLED=false\n")
    install_plugin("line", LINE.replace("WIDTH", "8"), factory="LineAgent")
    frozen = ask("freeze", "frozen", "--agent", "line", "--batches", "2", "--steps", "3")
    assert frozen.exit_code == 0, frozen.exception
    manifest = json.loads((folder / "frozen" / "manifest.json").read_text())
    assert manifest["kind"] == "world-model"
    assert manifest["source"]["agent"] == "line"
    (data,) = manifest["agent"]["transitions"]
    assert (folder / "frozen" / "data" / data).read_bytes().count(b"\n") == 6

    replayed = ask("replay", "frozen", "--output", "out", "--preset", "flowrl_bf16")
    assert replayed.exit_code == 0, replayed.exception
    assert replayed.stdout.splitlines()[1].split()[0] == "flowrl_bf16"
    result = json.loads((folder / "out" / "replay" / "flowrl_bf16.json").read_text())
    assert 1e-4 < result["gradients"]["relative_error"] < 0.5
    assert result["precision"] == {"world_model": "fp32/bf16/fp32"}
    assert len(result["loss"]) == 2

    searched = ask("bisect", "frozen", "--output", "out", "--preset", "flowrl_bf16")
    assert searched.exit_code == 0, searched.exception
    assert "no culprit" in searched.stdout
    assert json.loads((folder / "out" / "bisect.json").read_text())["culprits"] == []

    (folder / "site" / "line_plugin.py").write_text(LINE.replace("WIDTH", "16"))
    changed = ask("replay", "frozen", "--output", "out", "--preset", "flowrl_bf16")
    assert isinstance(changed.exception, AgentTaskError)
    assert "not those of the model that the agent builds now" in str(changed.exception)


def test_a_bisection_prints_what_it_found(tmp_path):
    pytest.importorskip("transformers")
    from infrastructure.precision_lab.frozen import save_policy_experiment
    from tests.infrastructure.precision_lab.small_experiment import small_experiment

    save_policy_experiment(tmp_path / "frozen", small_experiment(), source={}, seed=0)
    arguments = ["--preset", "bf16_fp32_value", "--output", tmp_path / "results"]
    done = ask("bisect", tmp_path / "frozen", *arguments, "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert "no culprit" in done.output
    assert (tmp_path / "results" / "bisect.json").is_file()
    wrong = ask("bisect", tmp_path, "--preset", "bf16_pur")
    assert "did you mean bf16_pure" in str(wrong.exception)


def test_a_sweep_shows_what_would_run_and_writes_nothing(tmp_path):
    cells = ["--preset", "bf16_pure", "--preset", "fp32_baseline", "--seed", "0", "--seed", "1"]
    command = ["lab", "sweep", "--dry-run", "--device", "cpu", "--output", str(tmp_path), *cells]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0, shown.output
    assert "4 of 4 cells would run, 120 updates each" in shown.output
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_refuses_wrong_presets_and_foreign_folders(tmp_path):
    wrong = CliRunner().invoke(app, ["lab", "ppo-sweep", "bf16_pur", "--output", str(tmp_path)])
    assert isinstance(wrong.exception, LabFailedError)
    assert "did you mean bf16_pure" in str(wrong.exception)
    (tmp_path / "runs").mkdir()
    foreign = CliRunner().invoke(app, ["lab", "sweep", "--output", str(tmp_path), "--dry-run"])
    assert isinstance(foreign.exception, LabFailedError)
    assert "belongs to another sweep" in str(foreign.exception)

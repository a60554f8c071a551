"""Document 004's scripts: its flags, as commands of the lab that the program accepts."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
import typer

from genesis_fp16.cli.app import app

SCRIPTS = Path(__file__).parents[2] / "scripts"
FLAGS = {
    "static_kl_probe": "--base_model small --num_prompts 2 --seq_lengths 64 128 "
    "--temperatures 0.5 1 --output_dir out --seed 3",
    "generate_frozen_trajectories": "--base_model small --num_batches 2 --batch_size 4 "
    "--max_gen_length 16 --output_dir out --seed 3",
    "replay_trajectories": "--precision_config bf16_pure --base_model small "
    "--trajectories_dir frozen --output_dir out --seed 3",
    "run_ppo_sweep": "--precision_config bf16_pure --base_model small --seed 3 --max_steps 60 "
    "--batch_size 8 --output_dir out --use_synthetic_reward --checkpoint_path model",
    "run_full_sweep": "--seeds 0 1 --configs bf16_pure fp16_pure --max_steps 60 --batch_size 8 "
    "--base_model small --output_dir out --dry_run",
    "run_failed_configs": "--config bf16_pure --seed 3 --max_steps 60 --batch_size 8 "
    "--base_model small --output_dir out",
    "analyze_results": "--results_dir out --output_dir plots",
}


def commands(script: str, arguments: list[str]) -> list[list[str]]:
    """Commands of ``genesis-fp16 lab`` for *arguments*."""
    names = runpy.run_path(str(SCRIPTS / f"{script}.py"))
    return names["commands"](arguments) if "commands" in names else [names["command"](arguments)]


def parameters(words: list[str]) -> dict[str, object]:
    """What the program's own parser makes of ``lab`` with *words*; it raises what a person sees."""
    group = typer.main.get_command(app)
    context = group.make_context("genesis-fp16", ["lab"], resilient_parsing=True)
    lab = group.get_command(context, "lab")
    command = lab.get_command(context, words[0])
    assert command is not None, f"lab has no command {words[0]}"
    return command.make_context(words[0], words[1:], parent=context).params


@pytest.mark.parametrize("script", FLAGS)
def test_the_flags_become_a_command_of_the_lab(script: str) -> None:
    required = ["--config", "bf16_pure"] if script == "run_failed_configs" else []
    for arguments in (required, FLAGS[script].split()):
        for words in commands(script, arguments):
            parameters(words)


def test_every_value_arrives() -> None:
    (sweep,) = commands("run_full_sweep", FLAGS["run_full_sweep"].split())
    arguments = parameters(sweep)
    assert arguments["seeds"] == [0, 1]
    assert arguments["presets"] == ["bf16_pure", "fp16_pure"]
    assert (arguments["updates"], arguments["dry_run"], arguments["output"]) == (
        60,
        True,
        Path("out"),
    )
    (cell,) = commands("run_ppo_sweep", FLAGS["run_ppo_sweep"].split())
    arguments = parameters(cell)
    assert (arguments["preset"], arguments["seed"], arguments["base_model"]) == (
        "bf16_pure",
        3,
        "model",
    )
    assert arguments["task_reward"] is True
    probe, report = commands("static_kl_probe", FLAGS["static_kl_probe"].split())
    assert parameters(probe)["lengths"] == [64, 128]
    assert parameters(probe)["temperatures"] == [0.5, 1.0]
    assert parameters(report)["results"] == Path("out")


def test_a_script_runs_the_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = str(SCRIPTS / "analyze_results.py")
    monkeypatch.setattr(sys, "argv", [script, "--results_dir", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(script, run_name="__main__")
    assert ended.value.code == 65  # os.EX_DATAERR: the folder holds no results

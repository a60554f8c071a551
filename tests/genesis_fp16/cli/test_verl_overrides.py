"""The overrides of verl: exact names, which verl's own configuration files accept."""

import json
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from genesis_fp16.cli.app import app
from genesis_fp16.cli.verl_overrides import VERSIONS, overrides, remarks
from infrastructure.events.role_precision import PRESETS

UPSTREAM = {
    "actor_rollout_ref.actor.fsdp_config.model_dtype",
    "actor_rollout_ref.actor.fsdp_config.dtype",
    "actor_rollout_ref.ref.fsdp_config.model_dtype",
    "actor_rollout_ref.ref.fsdp_config.dtype",
    "actor_rollout_ref.rollout.dtype",
    "critic.model.fsdp_config.model_dtype",
}
# Dtype settings of verl/trainer/config/** at these commits.
KNOWN = {
    "v0.7.0": ("f9c855f7", UPSTREAM | {"reward_model.rollout.dtype"}),
    "v0.6.1": ("d62da495", UPSTREAM),
    "flowrl-dev-fp16": (
        "ca1c3c00",
        {
            "actor_rollout_ref.actor.fsdp_config.model_dtype",
            "actor_rollout_ref.actor.dtype",
            "actor_rollout_ref.ref.fsdp_config.model_dtype",
            "actor_rollout_ref.ref.dtype",
            "actor_rollout_ref.rollout.dtype",
        },
    ),
}

MISSING = "verl's files are not installed: make everything installs them"
Compose = Callable[..., Any]


@pytest.fixture(scope="module")
def compose() -> Compose:
    """Composes the configuration of a PPO job of the installed verl with overrides, as verl does.

    The folder is not on the path, so that verl cannot be imported: its dependencies are absent.
    """
    hydra = pytest.importorskip("hydra", reason=MISSING)
    installed = [*metadata.distributions(name="verl", path=[str(Path(sys.prefix) / "verl")])]
    if not installed:
        pytest.skip(MISSING)
    (verl,) = installed
    assert verl.version == "0.7.0", "the version that the command prints by default"
    folder = str(verl.locate_file("verl/trainer/config"))

    def compose_job(*overrides: str) -> Any:
        with hydra.initialize_config_dir(folder, version_base=None):
            return hydra.compose("ppo_trainer", overrides=[*overrides])

    return compose_job


def ask(*arguments: str) -> list[str]:
    result = CliRunner().invoke(app, ["verl-overrides", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def test_every_setting_is_one_that_was_read_and_names_its_source() -> None:
    assert VERSIONS.keys() == KNOWN.keys()
    for name, (commit, known) in KNOWN.items():
        version = VERSIONS[name]
        assert commit in version.source
        assert {knob.path for knob in version.knobs} == known
        assert all(knob.read_in for knob in version.knobs)


def test_flowrl_in_fp16() -> None:
    lines = ask("flowrl_fp16")
    assert lines[0].startswith("# flowrl_fp16 ")
    assert lines[0].endswith(" verl v0.7.0 (volcengine/verl f9c855f7), FSDP")
    assert [line for line in lines if not line.startswith("#")] == [
        "actor_rollout_ref.actor.fsdp_config.model_dtype=float32",
        "actor_rollout_ref.actor.fsdp_config.dtype=float16",
        "actor_rollout_ref.ref.fsdp_config.model_dtype=float16",
        "actor_rollout_ref.ref.fsdp_config.dtype=float16",
        "actor_rollout_ref.rollout.dtype=float16",
        "critic.model.fsdp_config.model_dtype=float32",
        "reward_model.rollout.dtype=float32",
        "trainer.use_legacy_worker_impl=enable",
        "actor_rollout_ref.rollout.calculate_log_probs=True",
    ]
    comments = "\n".join(line for line in lines if line.startswith("#"))
    assert "# value fp32/fp32/fp32, not expressed" in comments
    assert "ShardedGradScaler(growth_interval=400)" in comments


def test_flowrls_own_branch_has_other_names() -> None:
    lines = ask("bf16_train_fp16_infer", "--verl", "flowrl-dev-fp16")
    assert "actor_rollout_ref.actor.dtype=bfloat16" in lines
    assert "actor_rollout_ref.rollout.dtype=float16" in lines
    assert not any(line.startswith("critic.") for line in lines)
    assert "rounding of bf16" in "\n".join(lines)


def test_fp32_needs_another_attention() -> None:
    lines = ask("fp32_baseline")
    assert "+actor_rollout_ref.model.override_config.attn_implementation=sdpa" in lines
    assert "actor_rollout_ref.model.use_remove_padding=False" in lines
    assert not any("ShardedGradScaler" in line for line in lines)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_preset_is_printed_for_every_version(version: str) -> None:
    for name, preset in PRESETS.items():
        answer = json.loads("\n".join(ask(name, "--verl", version, "--json")))
        assert answer["overrides"] == overrides(preset, VERSIONS[version])
        assert answer["remarks"] == list(remarks(preset, VERSIONS[version]))
        assert all("=" in override for override in answer["overrides"])
        pure = [remark for remark in answer["remarks"] if "for measurements only" in remark]
        assert bool(pure) == preset.pure


@pytest.mark.parametrize("preset", PRESETS)
def test_verls_own_configuration_takes_every_override(preset: str, compose: Compose) -> None:
    """Hydra refuses a name that verl's files lack; each value arrives where it was sent."""
    printed = [line for line in ask(preset) if not line.startswith("#")]
    job = compose(*printed)
    for override in printed:
        path, _, value = override.removeprefix("+").partition("=")
        part = job
        for name in path.split("."):
            part = part[name]
        assert str(part) == value, override
    added = {line.split("=")[0] for line in printed if line.startswith("+")}
    assert added <= {"+actor_rollout_ref.model.override_config.attn_implementation"}


def test_verls_own_configuration_refuses_an_unknown_override(compose: Compose) -> None:
    assert "override_config" in compose().actor_rollout_ref.model
    with pytest.raises(Exception, match=r"actor_rollout_ref\.actor\.dtype"):
        compose("actor_rollout_ref.actor.dtype=float16")  # that of FlowRL's branch


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["flowrl"], "'flowrl': did you mean flowrl_"),
        (["x"], "flowrl_fp16, flowrl_bf16"),
        (["flowrl_fp16", "--verl", "v9"], "v0.7.0, v0.6.1, flowrl-dev-fp16, got 'v9'"),
    ],
)
def test_an_unknown_name_is_refused_with_the_known_ones(arguments: list, problem: str) -> None:
    result = CliRunner().invoke(app, ["verl-overrides", *arguments])
    assert result.exit_code == 2
    output = " ".join(result.output.replace("│", " ").split())
    assert problem in output

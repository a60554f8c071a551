"""Settings in the code, in ``.env.example``, in the manual and in what is deployed: one set."""

import re
from pathlib import Path

import pytest

from genesis_fp16.settings import (
    AGENTS_PREFIX,
    ENV_FILE_VARIABLE,
    VARIABLES,
    AgentSettings,
    Settings,
    hot_fields,
    load_settings,
    variable_name,
)
from genesis_fp16.settings.genesis_names import CLIENT_NAMES

NAME = re.compile(r"\b((?:GENESIS|FP16|ENABLE_FP16)_[A-Z0-9_]*[A-Z0-9])\b")
FIELDS = "|".join(AgentSettings.model_fields).upper()
AGENT = re.compile(AGENTS_PREFIX + rf"[A-Z0-9_]+?__({FIELDS})(__\w+)?")
SETTINGS_FILES = ("kubernetes/base/settings.env", "compose/settings/genesis.env")
LINE = re.compile(r"^#?([A-Z0-9_]+)=", re.MULTILINE)


def test_the_example_shows_every_setting_once(root: Path) -> None:
    shown = LINE.findall((root / ".env.example").read_text())
    general = [name for name in shown if not name.startswith(AGENTS_PREFIX)]
    assert sorted(general) == sorted({*VARIABLES} - {ENV_FILE_VARIABLE})


def test_the_example_as_it_is_says_what_the_defaults_say(root: Path, tmp_path: Path) -> None:
    """Also with every comment sign taken away."""
    text = (root / ".env.example").read_text()
    whole = tmp_path / ".env"
    whole.write_text(re.sub(r"^#(?=[A-Z0-9_]+=)", "", text, flags=re.MULTILINE))
    defaults = load_settings(tmp_path / "none", {})
    for path in (root / ".env.example", whole):
        example = load_settings(path, {})
        changed = {
            name
            for name in type(defaults).model_fields
            if name not in ("env_file", "agents")
            and getattr(example, name) != getattr(defaults, name)
        }
        assert changed == set()


@pytest.mark.parametrize("name", SETTINGS_FILES)
def test_what_is_deployed_is_sound(root: Path, name: str) -> None:
    path = root / "deploy" / name
    settings = load_settings(path, {})
    assert settings.enable_fp16_training
    assert LINE.findall(path.read_text())


def test_everything_deployed_and_its_manual_name_settings_that_exist(root: Path) -> None:
    suffixes = {".env", ".yaml", ".service", ".conf", ".sh", ".py"}
    files = [path for path in (root / "deploy").rglob("*") if path.suffix in suffixes]
    files += [root / "Dockerfile", root / "deploy/lab/Dockerfile", *(root / "docs").rglob("*.md")]
    files += root.glob("*.sh")
    known = {*VARIABLES, ENV_FILE_VARIABLE, *CLIENT_NAMES}
    unknown = {
        f"{path.relative_to(root)}: {name}"
        for path in files
        for name in NAME.findall(path.read_text())
        if name not in known and not AGENT.fullmatch(name) and "/grafana/" not in str(path)
    }
    assert unknown == set()


def test_no_hot_setting_is_deployed_as_environment(root: Path) -> None:
    """Where it could not be changed in a running daemon."""
    hot = "|".join(variable_name(name) for name in hot_fields(Settings))
    hot += f"|{AGENTS_PREFIX}[A-Z0-9_]+?__PRECISION"
    places = [root / "Dockerfile", *(root / "deploy").rglob("*.yaml")]
    places += [root / "deploy/systemd/genesis-fp16.service"]
    set_there = re.compile(rf"(?:name: |Environment=|^\s+)({hot})(?:[:=,]|$)", re.MULTILINE)
    names_by_file = {str(place): set_there.findall(place.read_text()) for place in places}
    assert {place: names for place, names in names_by_file.items() if names} == {}

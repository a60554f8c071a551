"""Settings of earlier releases: each is ignored, with a warning that names the release."""

from pathlib import Path

import pytest

import genesis_fp16
from genesis_fp16.settings import VARIABLES, Settings, SettingsError, load_settings
from genesis_fp16.settings.env_file import is_ours
from genesis_fp16.settings.removed import REMOVED_SETTINGS


@pytest.fixture
def env_file(tmp_path: Path) -> Path:
    return tmp_path / ".env"


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


@pytest.mark.parametrize("name", REMOVED_SETTINGS)
@pytest.mark.parametrize("value", ["auto", "off", "", "{", "\x00"])
def test_a_removed_setting_is_ignored_wherever_it_is_set(
    env_file: Path, name: str, value: str
) -> None:
    removed = REMOVED_SETTINGS[name]
    env_file.write_text(f"GENESIS_SLOTS=2\n{name}={value if value.isprintable() else 'x'}\n")
    in_file = load_settings(env_file, {})
    expected = Settings(env_file=env_file, slots=2).model_dump()
    assert in_file.model_dump() == expected
    assert list(in_file.removed) == [name]
    assert f"{name} ({env_file} line 2)" in in_file.removed[name]
    assert f"release {removed.release} " in in_file.removed[name]
    assert removed.remedy in in_file.removed[name]
    assert name not in {shown for shown, _, _ in in_file.describe()}
    in_both = load_settings(env_file, {name: value})
    assert in_both.model_dump() == expected
    assert f"{name} ({env_file} line 2, environment)" in in_both.removed[name]
    assert in_both.shadowed == ()
    env_file.write_text("")
    assert f"{name} (environment)" in load_settings(env_file, {name: value}).removed[name]
    assert load_settings(env_file, {}).removed == {}


@pytest.mark.parametrize("name", REMOVED_SETTINGS)
def test_the_table_agrees_with_the_settings(name: str) -> None:
    assert name not in VARIABLES
    assert is_ours(name), "else it would be passed over in silence"
    assert _version(REMOVED_SETTINGS[name].release) <= _version(genesis_fp16.__version__)


def test_a_removed_setting_is_no_problem_beside_a_wrong_one(env_file: Path) -> None:
    env_file.write_text("GENESIS_FLEET=auto\nGENESIS_FLEETS=auto\nGENESIS_SLOTS=many\n")
    with pytest.raises(SettingsError) as caught:
        load_settings(env_file, {})
    [problem] = caught.value.problems
    assert problem.startswith("GENESIS_SLOTS=many")

"""Plugin code and what it returns, in this process; child processes are tested in `probe`."""

import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest
from pydantic import BaseModel, field_validator, model_validator

from genesis_fp16.plugins.loading import (
    PluginRefusedError,
    checked_agent,
    describe_error,
    load_agent,
    load_object,
    plugin_code,
    validate_settings,
)
from infrastructure.agent_contract import Schedule


class Knobs(BaseModel, extra="forbid"):
    depth: int = 3
    api_token: int = 0

    @field_validator("depth")
    @classmethod
    def _check_depth(cls, value: int) -> int:
        if value == 13:
            raise ValueError("13 brings bad luck")
        return value

    @model_validator(mode="after")
    def _check_both(self) -> Self:
        if self.depth == self.api_token:
            raise ValueError("DEPTH and API_TOKEN must differ")
        return self


class Tuned:
    name = "tuned"
    contract_version = 1

    def schedule(self) -> Schedule:
        return Schedule(every_seconds=60)

    def settings_model(self) -> type[BaseModel] | None:
        return Knobs

    def collect(self, context: object) -> None: ...

    def build_job(self, context: object, transitions: object) -> None: ...

    def publish(self, context: object, model: object, report: object) -> None: ...


class Plain(Tuned):
    def settings_model(self) -> None:
        return None


class Wrong(Tuned):
    def settings_model(self) -> type:
        return dict


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(PluginRefusedError) as caught:
        call()
    assert caught.value.exit_code == os.EX_CONFIG
    return str(caught.value)


@pytest.mark.parametrize("error", [RuntimeError("a\nb"), SystemExit(0), KeyboardInterrupt()])
def test_anything_that_plugin_code_raises_is_a_refusal_in_one_line(error: BaseException) -> None:
    def call() -> None:
        with plugin_code("loading it failed"):
            raise error

    message = refusal(call)
    assert message.startswith("loading it failed: ")
    assert "\n" not in message
    assert "test_loading.py" in message


def test_an_error_is_described_by_type_message_and_line() -> None:
    assert describe_error(ValueError("x")) == "ValueError: x"
    assert describe_error(ValueError()) == "raised ValueError"
    assert describe_error(SystemExit(3)) == "called sys.exit(3)"


def test_an_object_is_loaded_by_its_entry_point(tmp_path: Path) -> None:
    assert load_object(f"{__name__}:Tuned.name") == "tuned"
    assert load_object(f"{__name__}:Tuned", Path(__file__).parent) is Tuned
    for target in ("", "module", ":attribute", "module:"):
        assert "module:attribute" in refusal(lambda target=target: load_object(target))
    assert "does not exist" in refusal(lambda: load_object(f"{__name__}:Absent"))
    assert "is shadowed" in refusal(lambda: load_object(f"{__name__}:Tuned", tmp_path))


def test_an_agent_is_created_and_checked() -> None:
    assert load_agent(f"{__name__}:Tuned", "tuned").name == "tuned"
    assert "not callable" in refusal(lambda: load_agent(f"{__name__}:Tuned.name", "tuned"))
    assert "'tuned'" in refusal(lambda: load_agent(f"{__name__}:Tuned", "other"))
    assert "not an instance" in refusal(lambda: checked_agent(Tuned, "tuned"))
    assert "lacks name" in refusal(lambda: checked_agent({}, "tuned"))


def test_settings_are_validated_by_the_agents_model() -> None:
    assert validate_settings(Tuned(), {"depth": "7"}) == Knobs(depth=7)
    assert validate_settings(Plain(), {}) is None
    variable = "GENESIS_AGENTS__TUNED__SETTINGS__"
    assert f"{variable}DEPTH=deep" in refusal(lambda: validate_settings(Tuned(), {"depth": "deep"}))
    assert "DEPTH, API_TOKEN" in refusal(lambda: validate_settings(Tuned(), {"dept": 1}))
    message = refusal(lambda: validate_settings(Tuned(), {"depth": "13"}))
    assert message.endswith("DEPTH=13: 13 brings bad luck")
    message = refusal(lambda: validate_settings(Tuned(), {"depth": "7", "api_token": "7"}))
    assert message.endswith("DEPTH and API_TOKEN must differ")
    assert f"{variable}X" in refusal(lambda: validate_settings(Plain(), {"x": 1}))
    assert "pydantic" in refusal(lambda: validate_settings(Wrong(), {}))


def test_the_value_of_a_secret_is_not_shown() -> None:
    for name, value in {
        "api_token": "hunter2",
        "api_tokn": "hunter2",
        "depth": "https://u:hunter2@h",
        "Depth": {"password": "hunter2"},
    }.items():
        message = refusal(lambda: validate_settings(Tuned(), {name: value}))  # noqa: B023
        assert name.upper() in message
        assert "hunter2" not in message


def test_the_traceback_of_wrong_settings_shows_no_secret() -> None:
    wrong = {"api_token": ["hunter2"], "depth": {"password": "hunter2"}}
    with pytest.raises(PluginRefusedError) as caught:
        validate_settings(Tuned(), wrong)  # a traceback quotes this line
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_a_configured_agent_is_created_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "agents.d" / "seo.toml"
    path.parent.mkdir()
    path.write_text('[source]\npath = "records"\nformat = "casebank"\n')
    target = "agents.replay_agent:ReplayAgent"
    assert load_agent(target, "seo", definition=path).name == "seo"
    path.write_text("[source]\n")
    with pytest.raises(PluginRefusedError, match=r"^/.*seo\.toml: line 1: source"):
        load_agent(target, "seo", definition=path)
    with pytest.raises(PluginRefusedError, match=r"agents\.d"):
        load_agent(target, "seo")

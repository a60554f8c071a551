"""Values and defaults of the settings, and that .env.example agrees with them."""

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import BaseModel, Field

from agents.se_darwin.settings import SEDarwinSettings
from genesis_fp16.domain.guard import GuardSettings
from genesis_fp16.domain.run_spec import TrainerOptions
from genesis_fp16.settings import (
    AGENTS_PREFIX,
    VARIABLES,
    AgentSettings,
    Settings,
    SettingsError,
    hot_fields,
    load_settings,
    variable_name,
)
from infrastructure.agent_contract import Schedule
from infrastructure.options import StepOptions


@pytest.fixture
def env_file(tmp_path: Path) -> Path:
    return tmp_path / ".env"


def test_an_empty_home_is_the_default(env_file: Path) -> None:
    assert load_settings(env_file, {"GENESIS_HOME": ""}).home == Settings().home


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite:///:memory:"])
def test_a_database_in_memory_is_refused(env_file: Path, url: str) -> None:
    with pytest.raises(SettingsError, match=r"GENESIS_DATABASE_URL.*in memory"):
        load_settings(env_file, {"GENESIS_DATABASE_URL": url})


@pytest.mark.parametrize("text", ["", "maybe", "2", "truefalse"])
def test_a_text_that_is_not_a_truth_value_is_refused(env_file: Path, text: str) -> None:
    env_file.write_text(f"GENESIS_CPU_HALF={text}\n")
    with pytest.raises(SettingsError, match="GENESIS_CPU_HALF"):
        load_settings(env_file, {})


@pytest.mark.parametrize("cron", ["cron 0 3 * * 1", "cron 99 * * * *", "cron 0 3 * *", "every 0s"])
def test_an_invalid_schedule_is_refused(env_file: Path, cron: str) -> None:
    env_file.write_text(f"GENESIS_AGENTS__A__SCHEDULE={cron}\n")
    with pytest.raises(SettingsError, match="GENESIS_AGENTS__A__SCHEDULE"):
        load_settings(env_file, {})


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ({"ROLE_PRECISION": "flowrl"}, "'flowrl'.* mean flowrl_"),
        ({"ROLE_PRECISION": "bf16_pure"}, "'bf16_pure' .*flowrl_fp16"),
        ({"ROLE_PRECISION": "flowrl_fp16", "PRECISION": "bf16"}, "fp16, .* PRECISION .* is bf16"),
        ({"ROLE_PRECISION": "flowrl_fp16", "PRECISION": "auto"}, "PRECISION .* is auto"),
    ],
)
def test_a_preset_that_cannot_be_used_is_refused(env_file: Path, lines: dict, problem: str) -> None:
    env_file.write_text("".join(f"GENESIS_AGENTS__A__{k}={v}\n" for k, v in lines.items()))
    with pytest.raises(SettingsError, match=f"GENESIS_AGENTS__A__ROLE_PRECISION.*{problem}"):
        load_settings(env_file, {})


@pytest.mark.parametrize("precision", ["", "fp16", "fp32"])
def test_a_preset_agrees_with_its_half_type_and_with_a_rollback(
    env_file: Path, precision: str
) -> None:
    env_file.write_text(
        "GENESIS_AGENTS__A__ROLE_PRECISION=precision-rl\n"
        f"GENESIS_AGENTS__A__PRECISION={precision}\n"
    )
    preset = load_settings(env_file, {}).for_agent("a").role_preset
    assert preset is not None
    assert preset.name == "precision-rl"


def test_settings_of_an_agent(env_file: Path) -> None:
    env_file.write_text(
        "GENESIS_AGENTS__SE_DARWIN__SCHEDULE='every 5m'\nGENESIS_AGENTS__SE_DARWIN__PRECISION=\n"
        "GENESIS_AGENTS__SE_DARWIN__SETTINGS__LAYERS=[64, 64]\n"
        "GENESIS_AGENTS__SE_DARWIN__SETTINGS__INNER__RATE=0.1\n"
    )
    settings = load_settings(env_file, {"GENESIS_AGENTS__OTHER__ENABLED": "no"})
    assert settings.for_agent("se-darwin") == AgentSettings(
        schedule="every 5m", settings={"layers": [64, 64], "inner": {"rate": "0.1"}}
    )
    assert not settings.for_agent("other").enabled
    assert settings.for_agent("unknown") == AgentSettings()


def test_describe_redacts_and_names_each_source(env_file: Path) -> None:
    env_file.write_text("GENESIS_DATABASE_URL=postgresql://me:secret@db/x\n")
    rows = {name: (value, source) for name, value, source in load_settings(env_file, {}).describe()}
    assert rows["GENESIS_DATABASE_URL"] == ("postgresql://***@db/x", f"{env_file} line 1")
    assert rows["GENESIS_SLOTS"] == ("1", "default")
    assert rows.keys() == VARIABLES.keys()


def test_describe_hides_a_password_with_a_question_mark(env_file: Path) -> None:
    settings = load_settings(env_file, {"GENESIS_DATABASE_URL": "postgresql://me:sek?ret@db/x"})
    rows = {name: value for name, value, _ in settings.describe()}
    assert rows["GENESIS_DATABASE_URL"] == "postgresql://***@db/x"


def _wrong(path: Path, **variables: object) -> str:
    """Error message for *variables*."""
    with pytest.raises(SettingsError) as caught:
        load_settings(path, {name: str(value) for name, value in variables.items()})
    return str(caught.value)


FLOATS = [
    name
    for name, field in VARIABLES.items()
    if isinstance(Settings.model_fields[field].default, float) or name == "FP16_LOSS_SCALE"
]


@pytest.mark.parametrize("text", ["inf", "-inf", "nan", "1e400", "-1e-9", "1e300"])
@pytest.mark.parametrize("name", FLOATS)
def test_every_number_is_finite_and_in_range(env_file: Path, name: str, text: str) -> None:
    assert f"{name}={text} (environment)" in _wrong(env_file, **{name: text})


@pytest.mark.parametrize(
    "name", [n for n, f in VARIABLES.items() if type(Settings.model_fields[f].default) is int]
)
def test_every_count_is_in_range(env_file: Path, name: str) -> None:
    for text in ("-1", "99999999999999999999", "nan"):
        assert f"{name}={text} (environment)" in _wrong(env_file, **{name: text})


@pytest.mark.parametrize(
    ("variables", "blamed", "allowed"),
    [
        (
            {"GENESIS_GUARD_SUSTAINED_RATIO": 0.5, "GENESIS_GUARD_STORM_RATIO": 0.4},
            "GENESIS_GUARD_SUSTAINED_RATIO=0.5 (environment)",
            "above GENESIS_GUARD_STORM_RATIO=0.4",
        ),
        (
            {"GENESIS_GUARD_STORM_RATIO": 0.05},
            "GENESIS_GUARD_SUSTAINED_RATIO=0.1 (default)",
            "above GENESIS_GUARD_STORM_RATIO=0.05",
        ),
        (
            {"GENESIS_GUARD_COOLDOWN_SECONDS": 100_000},
            "GENESIS_GUARD_COOLDOWN_LIMIT_SECONDS=86400.0 (default)",
            "below GENESIS_GUARD_COOLDOWN_SECONDS=100000.0",
        ),
        (
            {"FP16_MIN_LOSS_SCALE": 131072},
            "FP16_MIN_LOSS_SCALE=131072 (environment)",
            "above FP16_LOSS_SCALE=65536.0",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    env_file: Path, variables: dict[str, object], blamed: str, allowed: str
) -> None:
    message = _wrong(env_file, **variables)
    assert f"{blamed}: must not be {allowed}" in message
    assert len(message.splitlines()) == 1 + 1


@pytest.mark.parametrize(
    ("wrong", "compared"),
    [
        ({"GENESIS_GUARD_STORM_RATIO": "high"}, {"GENESIS_GUARD_SUSTAINED_RATIO": 0.9}),
        ({"FP16_LOSS_SCALE": "2e99"}, {"FP16_MIN_LOSS_SCALE": 131072}),
    ],
)
def test_a_setting_is_not_compared_with_one_that_is_wrong_by_itself(
    env_file: Path, wrong: dict[str, object], compared: dict[str, object]
) -> None:
    message = _wrong(env_file, **wrong, **compared)
    assert len(message.splitlines()) == 1 + 1
    assert next(iter(wrong)) in message


def unbounded(schema: object, path: str) -> Iterator[str]:
    """Each number in *schema* that lacks its lowest or its highest value."""
    if isinstance(schema, dict):
        lowest, highest = {"minimum", "exclusiveMinimum"}, {"maximum", "exclusiveMaximum"}
        if schema.get("type") in ("integer", "number") and not (
            lowest & schema.keys() and highest & schema.keys()
        ):
            yield path
    inside = schema.items() if isinstance(schema, dict) else enumerate(schema)
    for name, nested in inside:
        if isinstance(nested, dict | list):
            yield from unbounded(nested, f"{path}.{name}")


@pytest.mark.parametrize("model", [Settings, AgentSettings])
def test_every_number_that_an_operator_sets_has_bounds(model: type[BaseModel]) -> None:
    assert list(unbounded(model.model_json_schema(), model.__name__)) == []


def test_a_number_without_bounds_is_found() -> None:
    class Further(AgentSettings):
        pause_steps: int = 0
        pause_seconds: Annotated[float, Field(ge=0)] | None = None

    names = list(unbounded(Further.model_json_schema(), "Further"))
    assert names == ["Further.properties.pause_steps", "Further.properties.pause_seconds.anyOf.0"]


def test_settings_may_be_equal_to_their_bound(env_file: Path) -> None:
    load_settings(
        env_file,
        {
            "GENESIS_GUARD_STORM_RATIO": "0.1",
            "GENESIS_GUARD_COOLDOWN_LIMIT_SECONDS": "3600",
            "FP16_LOSS_SCALE": "8",
            "FP16_MIN_LOSS_SCALE": "8",
        },
    )


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("GENESIS_HOME", "~no-such-user/x", "unknown user"),
        ("GENESIS_HOME", "a\0b", "UTF-8"),
        ("GENESIS_HOME", "a\udcff", "UTF-8"),
        ("GENESIS_METRICS_HOST", "http://127.0.0.1", "host name"),
        ("GENESIS_METRICS_HOST", "a" * 300, "host name"),
        ("GENESIS_DATABASE_URL", "postgresql://host:port/db", "SQLAlchemy"),
        ("GENESIS_RAY_ADDRESS", "head:8265", "URL of a dashboard"),
        ("GENESIS_RAY_ADDRESS", "http://head:99999", "URL of a dashboard"),
        ("GENESIS_RAY_ADDRESS", "http://head:8265/?token=x", "token is in a file"),
        ("GENESIS_RAY_TOKEN_FILE", "~no-such-user/x", "unknown user"),
        ("GENESIS_API_TOKEN_FILE", "~no-such-user/x", "unknown user"),
        ("GENESIS_DATABASE_URL", "postgresql+asyncpg://host/db", "begin with one of"),
        ("GENESIS_CANARY_AGENTS", "se-darwin waltzrl", "by commas"),
        ("GENESIS_CANARY_AGENTS", "se_darwin", "by commas"),
        ("GENESIS_AGENTS__A__SCHEDULE", "cron 0 0 31 2 *", "never fires"),
        ("GENESIS_AGENTS__A__SETTINGS__X", "[" * 5000, "nested deeper"),
        ("GENESIS_AGENTS__A__SETTINGS__X", "[" * 17 + "]" * 17, "nested deeper"),
        ("GENESIS_AGENTS__A__SETTINGS__X", '{"a": [NaN]}', "finite"),
        ("GENESIS_AGENTS__A__SETTINGS__X", "[1e999]", "finite"),
        ("GENESIS_AGENTS__A__SETTINGS__X", r'["\ud800"]', "UTF-8"),
        ("GENESIS_AGENTS__A__SETTINGS" + "__X" * 3000, "1", "parts"),
    ],
)
def test_values_that_would_fail_later_are_refused(
    env_file: Path, name: str, text: str, why: str
) -> None:
    message = _wrong(env_file, **{name: text})
    assert why in message
    assert name.rstrip("\udcff")[:60] in message
    assert "\udcff" not in message
    assert len(message) < 1000


def test_construction_reads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".env").write_text("GENESIS_SLOTS=7\n")
    monkeypatch.chdir(tmp_path)
    for name in ("GENESIS_SLOTS", "GENESIS_slots", "slots", "SLOTS"):
        monkeypatch.setenv(name, "7")
    for name in ("ENABLE_FP16_TRAINING", "enable_fp16_training"):
        monkeypatch.setenv(name, "false")
    for settings in (Settings(), Settings.model_validate({}), load_settings(Path("none"), {})):
        assert settings.slots == 1
        assert settings.enable_fp16_training


def test_names_and_marks_follow_from_the_declaration() -> None:
    assert variable_name("slots") == "GENESIS_SLOTS"
    assert variable_name("loss_scale") == "FP16_LOSS_SCALE"
    assert variable_name("enable_fp16_training") == "ENABLE_FP16_TRAINING"
    with pytest.raises(KeyError, match="not a setting"):
        variable_name("slot")
    hot = {*hot_fields(Settings)}
    assert {"enable_fp16_training", "precision", "profile_steps"} < hot
    assert {*hot_fields(TrainerOptions), *GuardSettings.model_fields} < hot
    assert {*TrainerOptions.model_fields} - hot == {"cpu_half"}
    assert {"timezone", "repeated_hour", "missing_hour"} < hot
    assert not hot & {"home", "slots", "agents", "database_url"}
    assert hot_fields(AgentSettings) == (
        *("schedule", "catch_up", "overlap", "repeated_hour", "missing_hour"),
        *("priority", "seconds_per_day", "precision", "explore", "role_precision"),
        *("keep_fp32", "guard_ladder", "job_cpus", "job_gpus", "job_memory_mib", "job_minutes"),
    )


# .env.example


_EXAMPLE_LINE = re.compile(r"(?:#|# \((?:in the environment|example)\) )?([A-Z][A-Z0-9_]+)=(.*)")


def _documented() -> dict[str, tuple[str, str]]:
    """Variable to its comment and its value in .env.example."""
    example = Path(__file__).parents[3] / ".env.example"
    documented: dict[str, tuple[str, str]] = {}
    comment = ""
    for line in example.read_text().splitlines():
        match = _EXAMPLE_LINE.fullmatch(line)
        if match:
            assert match[1] not in documented, f"{match[1]} is documented twice"
            documented[match[1]] = (comment, match[2])
        comment = line.removeprefix("# ")
    return documented


def _texts_below_fields(declaration: type) -> dict[str, str]:
    """Field to the text below it, which pydantic itself reads only in its own models."""
    [definition] = ast.parse(inspect.getsource(declaration)).body
    return {
        field.target.id: text.value.value
        for field, text in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign)
    }


def _comment(model: type[BaseModel], name: str) -> str:
    hot = " Hot." if name in hot_fields(model) else ""
    description = model.model_fields[name].description
    return f"{description or _texts_below_fields(StepOptions)[name]}{hot}"


def test_env_example_documents_every_setting_once() -> None:
    expected = {}
    for variable, name in VARIABLES.items():
        field = Settings.model_fields[name]
        default = "" if field.default is None else str(field.default)
        expected[variable] = (
            _comment(Settings, name),
            default.lower() if default in "TrueFalse" else default,
        )
    documented = _documented()
    agents = {name: text for name, text in documented.items() if name.startswith(AGENTS_PREFIX)}
    assert {k: v for k, v in documented.items() if k not in agents} == expected
    fields = {name.split("__")[2].lower(): text[0] for name, text in agents.items()}
    assert fields == {name: _comment(AgentSettings, name) for name in AgentSettings.model_fields}


def test_the_example_of_an_agents_own_setting_is_valid() -> None:
    prefix = f"{AGENTS_PREFIX}SE_DARWIN__SETTINGS__"
    variables = {
        n.removeprefix(prefix): v[1] for n, v in _documented().items() if n.startswith(prefix)
    }
    assert variables
    SEDarwinSettings.model_validate({name.lower(): value for name, value in variables.items()})


def test_env_example_loads_and_changes_nothing(tmp_path: Path) -> None:
    example = Path(__file__).parents[3] / ".env.example"
    uncommented = tmp_path / ".env"
    uncommented.write_text(re.sub(r"^#(?=[A-Z])", "", example.read_text(), flags=re.MULTILINE))
    for path in (example, uncommented):
        loaded = load_settings(path, {}).model_dump(exclude={"agents"})
        assert loaded == Settings(env_file=path).model_dump(exclude={"agents"})


def test_the_schedule_in_force(env_file: Path) -> None:
    own = Schedule(cron="0 3 * * *", repeated_hour="both", catch_up="all", overlap="replace")
    assert Settings().schedule_for("qa", own) == own
    general = {"GENESIS_TIMEZONE": "Europe/Helsinki", "GENESIS_MISSING_HOUR": "skip"}
    assert load_settings(env_file, general).schedule_for("qa", own) == replace(
        own, timezone="Europe/Helsinki", missing_hour="skip"
    )
    of_agent = {
        "GENESIS_AGENTS__QA__SCHEDULE": "cron 30 1 * * * America/New_York",
        "GENESIS_AGENTS__QA__REPEATED_HOUR": "second",
        "GENESIS_AGENTS__QA__MISSING_HOUR": "shift",
        "GENESIS_AGENTS__QA__CATCH_UP": "none",
        "GENESIS_AGENTS__QA__OVERLAP": "queue",
    }
    settings = load_settings(env_file, general | of_agent)
    assert settings.schedule_for("qa", own) == Schedule(
        cron="30 1 * * *",
        timezone="America/New_York",
        repeated_hour="second",
        missing_hour="shift",
        catch_up="none",
        overlap="queue",
    )
    interval = Schedule(every_seconds=5, catch_up="all")
    assert settings.schedule_for("other", interval) == interval
    with pytest.raises(SettingsError, match=r"did you mean Europe/Helsinki"):
        load_settings(env_file, {"GENESIS_TIMEZONE": "Europe/Helsinky"})

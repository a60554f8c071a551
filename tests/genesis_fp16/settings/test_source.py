"""Which value wins, what is refused, and what the errors name."""

import json
import re
from contextlib import suppress
from pathlib import Path

import pytest
from genesis_client import place as place_of_client
from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st

from genesis_fp16.settings import (
    AGENTS_PREFIX,
    VARIABLES,
    AgentSettings,
    Settings,
    SettingsError,
    load_settings,
)
from genesis_fp16.settings.genesis_names import CLIENT_NAMES, GENESIS_NAMES
from genesis_fp16.settings.removed import REMOVED_SETTINGS
from genesis_fp16.settings.source import child_environment

EX_CONFIG = 78


@pytest.fixture
def env_file(tmp_path: Path) -> Path:
    return tmp_path / ".env"


def test_without_file_and_environment_there_are_defaults(env_file: Path) -> None:
    settings = load_settings(env_file, {})
    assert settings == Settings(env_file=env_file)
    assert settings.enable_fp16_training
    assert settings.source_of("slots") == "default"


def test_the_environment_outranks_the_file(env_file: Path) -> None:
    env_file.write_text("GENESIS_SLOTS=2\nGENESIS_SEED=3\n")
    settings = load_settings(env_file, {"GENESIS_SLOTS": "4"})
    assert (settings.slots, settings.seed) == (4, 3)
    assert settings.source_of("slots") == "environment"
    assert settings.source_of("seed") == f"{env_file} line 2"
    assert settings.shadowed == ("GENESIS_SLOTS",)


@pytest.mark.parametrize(
    ("file", "environment", "expected"),
    [
        ("false", "true", False),
        ("true", "false", False),
        ("true", "true", True),
        ("off", "1", False),
    ],
)
def test_false_in_either_place_wins(
    env_file: Path, file: str, environment: str, expected: bool
) -> None:
    env_file.write_text(f"ENABLE_FP16_TRAINING={file}\n")
    settings = load_settings(env_file, {"ENABLE_FP16_TRAINING": environment})
    assert settings.enable_fp16_training is expected


def test_a_misspelt_rollback_is_refused_even_if_the_environment_outranks_it(env_file: Path) -> None:
    env_file.write_text("ENABLE_FP16_TRAINING=flase\n")
    with pytest.raises(SettingsError, match="flase"):
        load_settings(env_file, {"ENABLE_FP16_TRAINING": "true"})


def test_a_wrong_url_of_a_bucket_is_not_repeated(env_file: Path) -> None:
    env_file.write_text("GENESIS_SHARED_URL=s3://KEY:hunter2:bucket/x\n")
    with pytest.raises(SettingsError, match=r"GENESIS_SHARED_URL \(.*line 1\)") as refusal:
        load_settings(env_file, {})
    assert "hunter2" not in str(refusal.value)


def test_the_file_is_named_by_the_environment_only(env_file: Path, tmp_path: Path) -> None:
    env_file.write_text("GENESIS_SLOTS=7\n")
    settings = load_settings(environ={"GENESIS_ENV_FILE": str(env_file)})
    assert (settings.slots, settings.env_file) == (7, env_file)
    env_file.write_text("GENESIS_ENV_FILE=other\n")
    with pytest.raises(SettingsError, match="only the environment"):
        load_settings(env_file, {})


def test_all_problems_are_reported_at_once(env_file: Path) -> None:
    env_file.write_text(
        "\n# a comment\n\nGENESIS_SLOTS=0\nexport FP16_GROWTH_FACTOR = 1.0\n"
        "ENABLE_FP61_TRAINING=1\nno assignment here\n"
        "GENESIS_DATABASE_URL=mysql://me:hunter2@host/db?password=hunter3\n"
        "GENESIS_AGENTS__SE_DARWIN__SCHEDUL=x\nGENESIS_AGENTS__SE_DARWIN__SCHEDULE=weekly\n"
        "GENESIS_AGENTS__9__ENABLED=true\nOF_OTHERS=1\nGENESIS_SLOT=1\n"
    )
    with pytest.raises(SettingsError) as caught:
        load_settings(env_file, {"FP16_BACKOFF_FACTOR": "nan"})
    message = str(caught.value)
    for expected in (
        rf"GENESIS_SLOTS=0 \({env_file} line 4\): .*default is GENESIS_SLOTS=1",
        rf"FP16_GROWTH_FACTOR=1.0 \({env_file} line 5\)",
        rf"ENABLE_FP61_TRAINING \({env_file} line 6\).*did you mean ENABLE_FP16_TRAINING\?",
        rf"{env_file} line 7: not NAME=value",
        rf"GENESIS_DATABASE_URL \({env_file} line 8",
        rf"GENESIS_AGENTS__SE_DARWIN__SCHEDUL \({env_file} line 9\).*ENABLED, SCHEDULE",
        r"GENESIS_AGENTS__SE_DARWIN__SCHEDULE=weekly .*'every 30m'",
        r"GENESIS_AGENTS__9.*",
        r"FP16_BACKOFF_FACTOR=nan \(environment\)",
    ):
        assert re.search(expected, message), expected
    assert len(caught.value.problems) == 9
    assert "hunter" not in message
    assert "OF_OTHERS" not in message
    assert caught.value.exit_code == EX_CONFIG


@pytest.mark.parametrize(
    "name",
    [
        *("genesis_slots", "FP16_SCALE", "GENESIS_QA_MODELS", "GENESIS_ENVS"),
        *("GENSIS_SEED", "GENESYS_HOME", "gensis_slots", "FP61_LOSS_SCALE", "F16_LOSS_SCALE"),
        "GENSIS_AGENTS__A__PRECISION",
    ],
)
def test_a_misspelt_name_is_ignored_with_a_warning(env_file: Path, name: str) -> None:
    env_file.write_text(f"{name}=false\nGENESIS_SLOTS=2\n")
    settings = load_settings(env_file, {})
    assert settings.model_dump() == Settings(env_file=env_file, slots=2).model_dump()
    assert list(settings.unknown) == [name]
    assert settings.unknown[name].startswith(f"{name} ({env_file} line 1): not a setting; ")
    env_file.write_text("")
    assert list(load_settings(env_file, {name: "1"}).unknown) == [name]


@pytest.mark.parametrize("place", ["file", "environment"])
def test_names_of_other_programs_pass_in_silence(env_file: Path, place: str) -> None:
    names = dict.fromkeys(GENESIS_NAMES | CLIENT_NAMES, "production")
    assert {*place_of_client.VARIABLES} == CLIENT_NAMES
    assert {"GENESIS_ENV", "GENESIS_API_TOKENS", "GENESIS_QA_MODEL"} < names.keys()
    assert not names.keys() & {*VARIABLES, *REMOVED_SETTINGS}
    lines = "".join(f"{name}={value}\n" for name, value in names.items())
    env_file.write_text(lines if place == "file" else "")
    settings = load_settings(env_file, names if place == "environment" else {})
    assert settings == Settings(env_file=env_file)
    assert settings.unknown == settings.removed == {}
    assert settings.shadowed == ()


@pytest.mark.parametrize(
    "name",
    [
        *("ENABLE_FP16", "DISABLE_FP16", "ENABLE_FP16_TRAIN", "FP16_ENABLE", "TRAIN_IN_FP16"),
        *("ENABLE_FP61_TRAINING", "enable_fp16_training", "GENESIS_ENABLE_FP61_TRAINING"),
    ],
)
def test_a_name_like_the_rollback_flag_is_refused_with_its_name(env_file: Path, name: str) -> None:
    env_file.write_text(f"{name}=false\n")
    with pytest.raises(SettingsError, match=r"ENABLE_FP16_TRAINING\?"):
        load_settings(env_file, {})


def test_other_names_in_the_environment_are_ignored(env_file: Path) -> None:
    with pytest.raises(SettingsError, match=r"ENABLE_FP16_TRAINING\?"):
        load_settings(env_file, {"DISABLE_FP16": "true"})
    foreign = {"DS_FP16_MODE": "1", "GENESYS_CLOUD_REGION": "eu", "GENERAL_SEED": "1", "SEED": "1"}
    assert load_settings(env_file, foreign) == Settings(env_file=env_file)


def test_a_file_that_the_environment_names_must_exist(tmp_path: Path) -> None:
    missing = tmp_path / "folder" / "settings.env"
    with pytest.raises(SettingsError, match="does not exist"):
        load_settings(environ={"GENESIS_ENV_FILE": str(missing)})
    assert load_settings(missing, {}) == Settings(env_file=missing)


def test_a_misspelt_prefix_is_named_with_what_was_meant(env_file: Path) -> None:
    meant = {"GENSIS_SEED": "GENESIS_SEED", "FP61_LOSS_SCALE": "FP16_LOSS_SCALE"}
    meant["GENSIS_AGENTS__A__precision"] = "GENESIS_AGENTS__A__PRECISION"
    env_file.write_text("OTHER_SEED=3\n" + "".join(f"{name}=1\n" for name in meant))
    for environ in ({}, dict.fromkeys(meant, "1")):
        unknown = load_settings(env_file, environ).unknown
        assert unknown.keys() == meant.keys()
        for name, setting in meant.items():
            assert re.search(rf"{name} .*not a setting; did you mean {setting}\?", unknown[name])


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("genesis_fleet", r"release 0\.2\.0 removed GENESIS_FLEET; delete it"),
        ("GENESIS_FLEETS", r"release 0\.2\.0 removed GENESIS_FLEET; delete it"),
        ("GENESIS_SLOT", r"did you mean GENESIS_SLOTS\?$"),
        ("GENESIS_AGENTS__SE_DARWIN", r"GENESIS_AGENTS__SE_DARWIN__ .*ENABLED"),
    ],
)
def test_a_misspelt_name_gets_the_closest_remedy(env_file: Path, name: str, remedy: str) -> None:
    env_file.write_text(f"{name}=fp32\n")
    assert re.search(f"{name}.* .*{remedy}", load_settings(env_file, {}).unknown[name])


def test_a_misspelt_setting_of_an_agent_is_refused_with_the_closest_one(env_file: Path) -> None:
    name = "GENESIS_AGENTS__SE_DARWIN__PRESISION"
    env_file.write_text(f"{name}=fp32\n")
    with pytest.raises(SettingsError, match=rf"{name} .*did you mean PRECISION\?$"):
        load_settings(env_file, {})


def test_a_wrong_flag_in_the_environment_is_reported_whatever_the_file_says(env_file: Path) -> None:
    for text in ("", "ENABLE_FP16_TRAINING=false\n", "ENABLE_FP16_TRAINING=true\n"):
        env_file.write_text(text)
        with pytest.raises(SettingsError, match=r"ENABLE_FP16_TRAINING=banana \(environment\)"):
            load_settings(env_file, {"ENABLE_FP16_TRAINING": "banana"})


@pytest.mark.parametrize("whole", ["X=1", 'X={"y": 3}', 'X={"z": 3}', "X="])
@pytest.mark.parametrize("whole_first", [True, False])
def test_a_setting_whole_and_in_parts_is_refused(
    env_file: Path, whole: str, whole_first: bool
) -> None:
    lines = [f"GENESIS_AGENTS__A__SETTINGS__{part}\n" for part in (whole, "X__Y=2")]
    env_file.write_text("".join(lines if whole_first else reversed(lines)))
    with pytest.raises(SettingsError, match=r"X__Y .*line [12].*both whole"):
        load_settings(env_file, {})


def test_many_unknown_names_are_counted_not_listed(env_file: Path) -> None:
    unknown = load_settings(env_file, {f"GENESIS_X{number}": "1" for number in range(1000)}).unknown
    assert len(unknown) == 51
    assert "950 more names" in [*unknown.values()][-1]


def test_an_error_lists_the_first_of_a_thousand_wrong_settings(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_text(
        "".join(f"GENESIS_AGENTS__A{number}__SCHEDULE=often\n" for number in range(1000))
    )
    with pytest.raises(SettingsError, match="1,000 settings") as caught:
        load_settings(path, {})
    assert len(str(caught.value).splitlines()) == 102
    assert "GENESIS_AGENTS__A0__SCHEDULE=often" in str(caught.value)
    assert caught.value.problems[-1].startswith("900 more ")


SECRET = "sekret"


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (f"GENESIS_DATABASE_URL='postgresql://u:{SECRET}@h/d", "GENESIS_DATABASE_URL"),
        (f'export GENESIS_DATABASE_URL="{SECRET}', "GENESIS_DATABASE_URL"),
        (f"GENESIS_DATABASE_URL: {SECRET}", "GENESIS_DATABASE_URL"),
        (f"GENESIS_DATABASE_URL:postgresql://u:{SECRET}@h/d", "GENESIS_DATABASE_URL"),
        (f"GENESIS_DATABASE_URL {SECRET}", "GENESIS_DATABASE_URL"),
        (f"'GENESIS_X {SECRET}\n{SECRET}'=1", "GENESIS_X"),
        (f"OPENAI_API_KEY {SECRET}", "line 1"),
        (f"{SECRET} {SECRET}", "line 1"),
        (f"GENESIS_DATABASE_URL=postgresql:/u:{SECRET}@h/d", "GENESIS_DATABASE_URL"),
        (f"GENESIS_DATABASE_URL=u:{SECRET}@h/d", "GENESIS_DATABASE_URL"),
        (f"GENESIS_DATABASE_URL=postgresql://u:{SECRET}", "GENESIS_DATABASE_URL"),
        (f"GENESIS_DATABASE_URL='host=h password={SECRET}'", "GENESIS_DATABASE_URL"),
        (f"GENESIS_DATABASE_URL=postgresql://u:pass@{SECRET}@h/d", "GENESIS_DATABASE_URL"),
        (f"GENESIS_METRICS_HOST=http://u:{SECRET}@h", "GENESIS_METRICS_HOST"),
        (f'GENESIS_AGENTS__A__SETTINGS={{"api_key":"{SECRET}"', "GENESIS_AGENTS__A__SETTINGS"),
        (f"GENESIS_AGENTS__A__SETTINGS={SECRET}", "GENESIS_AGENTS__A__SETTINGS"),
        (f"GENESIS_AGENTS__A__SETING__API_TOKEN={SECRET}", "GENESIS_AGENTS__A__SETING"),
        (f"GENESIS_AGENTS__A__SETING={SECRET}", "GENESIS_AGENTS__A__SETING"),
        (f"GENESIS_AGENTS__A__ENABLED__X={SECRET}", "GENESIS_AGENTS__A__ENABLED"),
        (f"GENESIS_AGENTS__9__SETTINGS__API_TOKEN={SECRET}", "GENESIS_AGENTS__9"),
    ],
)
def test_an_error_names_the_setting_without_its_secret(
    env_file: Path, line: str, named: str
) -> None:
    env_file.write_text(f"{line}\n")
    with pytest.raises(SettingsError) as caught:
        load_settings(env_file, {})
    (problem,) = caught.value.problems
    assert named in problem
    assert f"{env_file} line 1" in problem
    assert SECRET not in problem


def test_a_long_name_is_cut(env_file: Path) -> None:
    (problem,) = _problems({f"GENESIS_AGENTS__A__{'X' * 5000}": "1"})
    (warning,) = load_settings(env_file, {f"GENESIS_{'X' * 5000}": "1"}).unknown.values()
    assert max(len(problem), len(warning)) < 400


def test_control_characters_and_line_ends_do_not_reach_a_message(env_file: Path) -> None:
    env_file.write_text("GENESIS_SLOTS='2\nGENESIS_SEED=3'\n")
    environ = {"GENESIS_X\x1b[31m\n": "1", "GENESIS_SEED": "a\x9b\nb"}
    with pytest.raises(SettingsError) as caught:
        load_settings(env_file, environ)
    assert all(problem.isprintable() for problem in caught.value.problems)
    assert r"GENESIS_SEED=a\x9b\nb" in str(caught.value)
    assert len(caught.value.problems) == 2
    (warning,) = load_settings(Path("none"), {"GENESIS_X\x1b[31m\n": "1"}).unknown.values()
    assert warning.isprintable()


ODD = ["inf", "nan", "1e400", "~x", "", "[[", '{"a":1}', "every 1s", "cron * * * * *", "sqlite:///"]
ANY_NAME = st.one_of(
    st.sampled_from([*VARIABLES]),
    st.builds(
        f"{AGENTS_PREFIX}A__{{}}".format,
        st.sampled_from([field.upper() for field in AgentSettings.model_fields] + ["SETTINGS__X"]),
    ),
)
ANY_TEXT = st.one_of(
    st.text(st.characters(exclude_characters="\0"), max_size=20),
    st.sampled_from(ODD),
    st.floats().map(str),
    st.integers().map(str),
    st.sampled_from([str(field.default) for field in Settings.model_fields.values()]),
)


def _problems(variables: dict[str, str]) -> list[str]:
    try:
        load_settings(Path("/nowhere/.env"), variables)
    except SettingsError as error:
        return error.problems
    return []


@pytest.mark.process
@settings_of_hypothesis(max_examples=3 * settings_of_hypothesis.default.max_examples)
@given(variables=st.dictionaries(ANY_NAME, ANY_TEXT, max_size=4))
def test_any_text_gives_settings_or_an_error_that_names_it(variables: dict[str, str]) -> None:
    problems = _problems(variables)
    for problem in problems:
        assert any(name in problem for name in [*variables, *VARIABLES]), problem
        assert re.search(": .{8}", problem), problem
    if not problems:
        settings = load_settings(Path("/nowhere/.env"), variables)
        json.dumps(settings.model_dump(mode="json"), allow_nan=False).encode()
        assert Settings.model_validate(settings.model_dump()).model_dump() == settings.model_dump()
        assert settings.describe()


@pytest.mark.process
@given(
    lines=st.lists(
        st.one_of(
            st.text(max_size=30),
            st.tuples(
                st.sampled_from([*VARIABLES, AGENTS_PREFIX, f"{AGENTS_PREFIX}A__SETTINGS__"]),
                st.text(max_size=12),
            ).map("".join),
            st.tuples(st.sampled_from([*VARIABLES]), st.text(max_size=12)).map("=".join),
        ),
        max_size=6,
    )
)
def test_any_file_is_read_or_refused(tmp_path_factory, lines: list[str]) -> None:
    path = tmp_path_factory.getbasetemp() / "random.env"
    path.write_bytes("\n".join(lines).encode(errors="surrogatepass"))
    with suppress(SettingsError):
        load_settings(path, {})


def test_a_child_with_code_of_others_gets_no_key_of_the_daemon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GENESIS_API_TOKEN", "0123456789abcdef")
    monkeypatch.setenv("GENESIS_DATABASE_URL", "postgresql://genesis:password@database/genesis")
    monkeypatch.setenv("GENESIS_PRECISION", "bf16")
    given = child_environment({"MORE": "1"})
    assert (given["GENESIS_PRECISION"], given["MORE"]) == ("bf16", "1")
    assert not given.keys() & {"GENESIS_API_TOKEN", "GENESIS_DATABASE_URL"}

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infrastructure.agent_contract.transition import Box, Discrete, Text
from infrastructure.trajectories.genesis_records.casebank import SPEC
from infrastructure.trajectories.record_source import DefinitionError, read_definition
from infrastructure.trajectories.record_source.definition import MAX_BYTES, parse_definition

WHOLE = """\
description = "Answers customers"
schedule = "cron 0 3 * * mon"

[source]
path = "records/support"
agents = ["support", "support-agent"]

[spec]
success = ["solved", "true"]
improvement = "score"

[spec.observation]
load = { type = "box", shape = [3] }
topic = { type = "discrete", values = ["billing", "login"] }

[spec.action]
"reply.text" = { type = "text", buckets = 512 }

[spec.targets]
solved = { type = "discrete", values = ["false", "true"] }
score = { type = "box" }

[training]
steps = 100
"""


def test_a_definition_is_read(tmp_path: Path) -> None:
    path = tmp_path / "support.toml"
    path.write_text(WHOLE)
    definition = read_definition(path)
    spec = definition.transition_spec()
    assert spec.observation == {
        "load": Box(shape=(3,)),
        "topic": Discrete(values=("billing", "login")),
    }
    assert spec.action == {"reply.text": Text(buckets=512)}
    assert (spec.success, spec.improvement) == (("solved", "true"), "score")
    assert spec.split == "group"
    by_time = parse_definition(WHOLE.replace("[spec]", '[spec]\nsplit = "time"').encode(), path)
    assert by_time.transition_spec().split == "time"
    assert definition.training.steps == 100
    assert definition.model_validate_json(definition.model_dump_json()) == definition


DRIVEN = """\
[source]
path = "records/drive"

[spec]
history = 3
rollout_steps = 20

[spec.observation]
speed = { type = "box" }
gear = { type = "discrete", values = ["1", "2"] }

[spec.action]
pedal = { type = "box" }

[spec.targets]
speed = { type = "box", delta = true }
gear = { type = "discrete", values = ["1", "2"] }
"""


def test_a_definition_sets_history_and_rollouts() -> None:
    spec = parse_definition(DRIVEN.encode(), Path("x.toml")).transition_spec()
    assert (spec.history, spec.rollout_steps) == (3, 20)
    assert spec.observation.keys() == {"speed", "gear"} | spec.earlier_fields.keys()
    assert spec.earlier_fields["pedal[-2]"] == ("pedal", 2)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("history = 3", "history = 0", "line 5: spec.history: Input should be greater than"),
        ("rollout_steps = 20", "rollout_steps = -1", "line 6: spec.rollout_steps: Input should"),
        (
            "rollout_steps = 20",
            "rollout_steps = 99999",
            "Input should be less than or equal to 10000",
        ),
        ("history", "histroy", "line 5: spec.histroy: there is no such key; did you mean history?"),
        (
            'gear = { type = "discrete", values = ["1", "2"] }\n\n[spec.action]',
            'gear = { type = "text" }\n\n[spec.action]',
            "line 4: spec: rollout_steps: a rollout cannot continue observation 'gear'",
        ),
        ('speed = { type = "box", delta = true }', "", "nothing predicts observation 'speed'"),
        ("delta = true", "shape = [2]", "add the field to [spec.targets] with the same type"),
        ("pedal", "speed", "rename the action 'speed'"),
        ("[source]", '[source]\nformat = "records"\ngroup = "x"', "spec.history: the records of"),
        ("[source]", '[source]\nformat = "casebank"', "remove history, or write records of"),
    ],
)
def test_a_history_or_rollout_that_cannot_be_is_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        parse_definition(DRIVEN.replace(old, new, 1).encode(), Path("x.toml"))
    assert message in str(caught.value)


def test_genesis_formats_bring_their_fields() -> None:
    text = b'[source]\npath = "x"\nformat = "casebank"\n'
    assert parse_definition(text, Path("x.toml")).transition_spec() == SPEC


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("schedule =", "shedule =", "line 2: shedule: there is no such key; did you mean sch"),
        ("cron 0 3 * * mon", "daily", "line 2: schedule: write a schedule as 'every 30m'"),
        ('path = "records/support"', "", "line 4: source: a source of kind 'folder'"),
        ("agents =", "agent =", "line 6: source.agent: "),
        ("agents =", "pattren =", "line 6: source.pattren: there is no such key"),
        ("[source]", '[source]\nformat = "xml"', "line 5: source.format: Input should be 'transit"),
        ("[source]", '[source]\nformat = "records"', "needs group: "),
        ("[source]", '[source]\ngroup = "x"', "group: only the format 'records'"),
        ("[source]", '[source]\npattern = "a/b"', "pattern is the name"),
        ('"discrete", values = ["billing", "login"]', '"discrte"', "line 14: spec.obs"),
        ('values = ["billing", "login"]', 'values = ["a"]', "Discrete needs two"),
        ("shape = [3]", "shpe = [3]", "line 13: spec.observation.load.shpe: "),
        ("buckets = 512", "buckets = 1", "Text needs two"),
        ('"solved", "true"]', '"solved", "yes"]', "label of a Discrete target"),
        ("steps = 100", "steps = 0", "line 24: training.steps: "),
        (', values = ["billing", "login"]', "", "missing; add values to [spec.observation.topic]"),
        ("[training]", "[training", "; write tables as [source], and keys as name = value"),
    ],
)
def test_a_wrong_definition_names_line_and_remedy(old: str, new: str, message: str) -> None:
    assert old in WHOLE
    with pytest.raises(DefinitionError) as caught:
        parse_definition(WHOLE.replace(old, new).encode(), Path("support.toml"))
    assert message in str(caught.value)
    assert str(caught.value).startswith("support.toml")
    assert "\n" not in str(caught.value)


def test_an_empty_definition_is_told_what_to_add() -> None:
    with pytest.raises(DefinitionError, match=r"source: missing; add \[source\]$"):
        parse_definition(b"", Path("x.toml"))


def test_fields_are_needed_unless_the_format_knows_them() -> None:
    with pytest.raises(DefinitionError, match=r"'transitions' .*spec\.observation"):
        parse_definition(b'[source]\npath = "x"\n', Path("x.toml"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "restore it"),
        (lambda path: path.mkdir(), "regular file"),
        (os.mkfifo, "regular file"),
        (lambda path: path.write_bytes(b" " * (MAX_BYTES + 1)), "256 KiB"),
        (lambda path: path.write_bytes(b'description = "\xff"'), "UTF-8 at byte 15"),
    ],
)
def test_what_is_no_definition_is_refused(
    make: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    make(tmp_path / "a.toml")
    with pytest.raises(DefinitionError, match=message):
        read_definition(tmp_path / "a.toml")


@given(st.text() | st.binary().map(lambda each: each.decode("latin-1")))
def test_any_text_is_a_definition_or_a_definition_error(text: str) -> None:
    with pytest.raises(DefinitionError):
        parse_definition(text.encode(), Path("x.toml"))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ('kind = "redis"', r"needs url, such as 'redis://localhost'"),
        ('kind = "mongodb"\nurl = "redis://localhost"', r"such as 'mongodb://localhost'"),
        ('kind = "redis"\nurl = "redis://:secret@localhost"', "set password_file"),
        ('kind = "redis"\nurl = "redis://:se/cret@localhost"', "set password_file"),
        ('kind = "redis"\nurl = "redis://localhost?db=1&password=secret"', "set password_file"),
        ('kind = "mongodb"\nurl = "mongodb://u:s#cret@localhost"', "set password_file"),
        ('kind = "redis"\nurl = "redis://localhost"\npath = "records"', "takes no path"),
        ('kind = "buffer"\nurl = "redis://localhost"', r"kind 'buffer' takes no url"),
    ],
)
def test_a_server_is_described_by_its_own_keys(source: str, message: str) -> None:
    text = f'[source]\nformat = "replay-trajectories"\n{source}'
    with pytest.raises(DefinitionError, match=message):
        parse_definition(text.encode(), Path("builder.toml"))


def test_a_number_of_thousands_of_digits_is_refused() -> None:  # found by `make fuzz`
    with pytest.raises(DefinitionError, match="is not TOML"):
        parse_definition(b"schedule = " + b"1" * 5000, Path("a.toml"))

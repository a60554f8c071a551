import os
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from genesis_fp16.domain.attempt import Attempt, attempt_folder
from genesis_fp16.domain.run_spec import SPEC_FILE, RunSpec
from genesis_fp16.runs.spec import make_spec
from genesis_fp16.settings import AgentSettings, Settings
from genesis_fp16.store import Store
from infrastructure.events import PrecisionState

FP32 = PrecisionState(requested="fp16", effective="fp32", reason="flag")


def test_a_specification_holds_run_attempt_and_settings(tmp_path: Path, store: Store) -> None:
    agent_settings = AgentSettings(
        processes_per_run=2, keep_fp32="rnn, *.norm,", settings={"epochs": 3}
    )
    settings = Settings(home=tmp_path / "home", worker_threads=5, agents={"a": agent_settings})
    run = store.enqueue("a", first_seed=7)
    attempt = store.begin_attempt(run.id, "i")
    assert attempt is not None
    spec = make_spec(settings, run, attempt, "module:Agent", FP32)
    assert (spec.run_id, spec.attempt, spec.seed) == (run.id, 1, run.seed)
    assert (spec.precision, spec.entry_point) == (FP32, "module:Agent")
    assert (spec.threads, spec.processes_per_run, spec.settings) == (5, 2, {"epochs": 3})
    assert spec.keep_fp32 == ("rnn", "*.norm")
    assert spec.attempt_folder == attempt_folder(settings.home, attempt)
    assert spec.run_folder == settings.home / "runs" / run.id
    assert spec.agent_folder == settings.home / "agents" / "a"
    assert spec.repeats is None
    assert spec.definition is None
    of_b = make_spec(settings, replace(run, agent="b"), attempt, "module:Agent", FP32)
    assert (of_b.processes_per_run, of_b.settings, of_b.keep_fp32) == (1, {}, ())


def test_a_configured_agent_is_described_by_its_file(tmp_path: Path, store: Store) -> None:
    settings = Settings(home=tmp_path / "home")
    definition = settings.home / "agents.d" / "a.toml"
    definition.parent.mkdir(parents=True)
    definition.touch()
    run = store.enqueue("a", first_seed=7)
    attempt = store.begin_attempt(run.id, "i")
    assert attempt is not None
    assert make_spec(settings, run, attempt, "module:Agent", FP32).definition == definition


def test_a_baseline_run_repeats_its_run(tmp_path: Path, store: Store) -> None:
    settings = Settings(home=tmp_path / "home")
    run = replace(store.enqueue("a", first_seed=7), baseline_of="first")
    attempt = store.begin_attempt(run.id, "i")
    assert attempt is not None
    spec = make_spec(settings, run, attempt, "module:Agent", FP32)
    assert spec.repeats == settings.home / "runs" / "first"


def spec_of(store: Store, home: Path, agent_settings: dict, **changes) -> tuple:
    """The specification of the next attempt of the first run, under the agent's settings *own*."""
    settings = Settings(home=home, agents={"a": AgentSettings(settings=agent_settings)})
    run = next(iter(store.runs("a")), None) or store.enqueue("a", first_seed=7)
    number = len(list((home / "runs" / run.id / "attempts").glob("*"))) + 1
    attempt = Attempt(run_id=run.id, number=number, incarnation="i", started_at=0.0)
    with capture_logs() as logs:
        spec = make_spec(settings, replace(run, **changes), attempt, "module:Agent", FP32)
    return spec, [(entry["event"], entry.get("changed")) for entry in logs]


def write_spec(spec: RunSpec, text: str | None = None) -> None:
    spec.attempt_folder.mkdir(parents=True)
    (spec.attempt_folder / SPEC_FILE).write_text(text or spec.model_dump_json())


def test_a_run_keeps_the_agents_settings_of_its_first_attempt(tmp_path: Path, store: Store) -> None:
    first, _ = spec_of(store, tmp_path, {"task": "sorting", "rounds": 2})
    write_spec(first)
    second, logs = spec_of(store, tmp_path, {"task": "brackets", "rounds": 2, "kl": 0.1})
    assert second.attempt == 2
    assert second.settings == {"task": "sorting", "rounds": 2}
    assert logs == [("settings_kept", "KL, TASK")]
    write_spec(second)
    third, logs = spec_of(store, tmp_path, {"task": "sorting", "rounds": 2})
    assert (third.settings, logs) == (first.settings, [])


def test_a_repetition_has_the_settings_of_the_run_it_repeats(tmp_path: Path, store: Store) -> None:
    first, _ = spec_of(store, tmp_path, {"task": "sorting"})
    write_spec(first)
    twin, _ = spec_of(store, tmp_path, {"task": "brackets"}, id="twin", baseline_of=first.run_id)
    assert (twin.settings, twin.repeats) == ({"task": "sorting"}, first.run_folder)


def test_a_pipe_in_place_of_a_specification_is_reported(tmp_path: Path, store: Store) -> None:
    first, _ = spec_of(store, tmp_path, {"epochs": 2})
    write_spec(first)
    (first.attempt_folder / SPEC_FILE).unlink()
    os.mkfifo(first.attempt_folder / SPEC_FILE)  # without a writer
    second, logs = spec_of(store, tmp_path, {"epochs": 3})
    assert (second.settings, logs) == ({"epochs": 3}, [("settings_unreadable", None)])


@pytest.mark.parametrize("damaged", ["", "{", "[1]", '{"settings": 3}', "[" * 99999])
def test_a_damaged_specification_is_reported_and_the_next_one_counts(
    tmp_path: Path, store: Store, damaged: str
) -> None:
    first, _ = spec_of(store, tmp_path, {"secret": "s3cret"})
    write_spec(first, damaged or " ")
    second, logs = spec_of(store, tmp_path, {"epochs": 3})
    assert second.settings == {"epochs": 3}
    assert logs == [("settings_unreadable", None)]
    write_spec(second)
    third, logs = spec_of(store, tmp_path, {"epochs": 4})
    assert third.settings == {"epochs": 3}
    assert [event for event, _ in logs] == ["settings_unreadable", "settings_kept"]


def test_an_attempt_whose_specification_found_no_room_does_not_count(
    tmp_path: Path, store: Store
) -> None:
    first, _ = spec_of(store, tmp_path, {"epochs": 3})
    first.attempt_folder.mkdir(parents=True)
    second, logs = spec_of(store, tmp_path, {"epochs": 4})
    assert (second.settings, logs) == ({"epochs": 4}, [])

from dataclasses import replace
from pathlib import Path

from genesis_fp16.domain.attempt import attempt_folder
from genesis_fp16.runs.spec import make_spec
from genesis_fp16.settings import AgentSettings, Settings
from genesis_fp16.store import Store
from infrastructure.events import PrecisionState

FP32 = PrecisionState(requested="fp16", effective="fp32", reason="flag")


def test_a_specification_holds_run_attempt_and_settings(tmp_path: Path, store: Store) -> None:
    own = AgentSettings(processes_per_run=2, keep_fp32="rnn, *.norm,", settings={"epochs": 3})
    settings = Settings(home=tmp_path / "home", worker_threads=5, agents={"a": own})
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
    other = make_spec(settings, replace(run, agent="b"), attempt, "module:Agent", FP32)
    assert (other.processes_per_run, other.settings, other.keep_fp32) == (1, {}, ())


def test_a_baseline_run_repeats_its_run(tmp_path: Path, store: Store) -> None:
    settings = Settings(home=tmp_path / "home")
    run = replace(store.enqueue("a", first_seed=7), baseline_of="first")
    attempt = store.begin_attempt(run.id, "i")
    assert attempt is not None
    spec = make_spec(settings, run, attempt, "module:Agent", FP32)
    assert spec.repeats == settings.home / "runs" / "first"

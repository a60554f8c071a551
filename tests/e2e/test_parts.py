"""An agent whose job has three parts: each is seen by itself, all change precision together."""

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.measuring.ports import free_port
from tests.e2e.page.browser import Browser, missing_program
from tests.e2e.page.site import TOKEN
from tests.patience import crowding, wait_until

pytestmark = pytest.mark.e2e

PARTS = ("critic", "actor", "temperature")
WEIGHTS = "weights.json"
DEADLINE_SECONDS = 2.0


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory, quick_plugin: Path) -> Path:
    """The agent with parts, installed alone; it is made of the quick agent."""
    folder = shutil.copytree(quick_plugin, tmp_path_factory.mktemp("parts") / "plugin")
    shutil.copy(Path(__file__).with_name("parts_agent.py"), folder)
    entry_points = folder / "quick_agent-1.0.dist-info" / "entry_points.txt"
    entry_points.write_text("[genesis.agents]\nparts = parts_agent:PartsAgent\n")
    return folder


def begin(daemon, *, epochs: int, batches: int, pause: float):
    """Let *daemon* train in FP16, again and again; overflows come and go."""
    daemon.configure(
        ENABLE_FP16_TRAINING="true",
        GENESIS_CPU_HALF="true",
        GENESIS_BASELINE_INTERVAL_STEPS=0,
        GENESIS_BASELINE_EVERY_RUNS=0,
        GENESIS_GUARD_ENABLED="false",
        FP16_LOSS_SCALE=2.0**24,
        FP16_GROWTH_INTERVAL=50,
        GENESIS_AGENTS__PARTS__SCHEDULE='"every 1s"',
        GENESIS_AGENTS__PARTS__SETTINGS__EPOCHS=epochs,
        GENESIS_AGENTS__PARTS__SETTINGS__BATCHES_PER_EPOCH=batches,
        GENESIS_AGENTS__PARTS__SETTINGS__PAUSE_SECONDS=pause,
    )
    return daemon.start()


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory, daemon_class, plugin: Path) -> Iterator:
    """A daemon whose agent trains without end, past overflows of two parts."""
    daemon = daemon_class(tmp_path_factory.mktemp("training") / "daemon", python_path=plugin)
    try:
        daemon.configure(GENESIS_API_PORT=free_port(), GENESIS_API_TOKEN=TOKEN)
        begin(daemon, epochs=1_000_000, batches=200, pause=0.02)
        overflows = "genesis_part_overflow_steps_total"
        for part in ("critic", "actor"):
            daemon.wait_for(lambda part=part: of(daemon, overflows, part) > 3, f"{part} overflow")
        yield daemon
    finally:
        daemon.clean_up()


def of(daemon, name: str, part: str) -> float:
    return daemon.metrics().value(name, agent="parts", part=part)


def test_the_metrics_tell_parts_apart(training) -> None:
    metrics = training.metrics()
    steps = {
        part: metrics.value("genesis_part_steps_total", agent="parts", part=part) for part in PARTS
    }
    assert steps["actor"] == steps["temperature"] == pytest.approx(steps["critic"] / 2, abs=1)
    assert sum(steps.values()) == metrics.value("genesis_training_steps_total", agent="parts")
    scales = [metrics.value("genesis_part_loss_scale", agent="parts", part=part) for part in PARTS]
    assert min(scales) == metrics.value("genesis_fp16_loss_scale", agent="parts") > 1
    assert len(set(scales)) > 1
    for name in ("genesis_part_loss", "genesis_part_grad_norm"):
        assert all(math.isfinite(metrics.value(name, part=part)) for part in PARTS)


def test_a_run_is_shown_with_its_parts(training) -> None:
    [run] = training.json("runs")
    shown = training.json("runs", "show", run["id"])["parts"]
    assert tuple(shown) == PARTS
    assert shown["critic"]["overflows"] > 3
    printed = training.cli("runs", "show", run["id"]).stdout
    rows = [line.split() for line in printed.splitlines()]
    assert [row[0] for row in rows if row and row[0] in PARTS] == list(PARTS)


def test_the_page_has_a_table_and_a_line_for_each_part(
    training, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if problem := missing_program():
        pytest.skip(problem)
    [run] = training.json("runs")
    port = training.settings["GENESIS_API_PORT"]
    browser = Browser(f"http://127.0.0.1:{port}", tmp_path_factory.mktemp("browser") / "profile")
    try:
        browser.sign_in(TOKEN)
        browser.open(f"/runs/{run['id']}")
        for part in PARTS:
            assert part in browser.text("#parts + div")
            line = f"loss scale of {part}"
            wait_until(lambda line=line: line in browser.text("#charts .legend"), line)
        assert browser.violations() == []
    finally:
        browser.close()


def test_all_parts_change_precision_at_one_boundary(training) -> None:
    scales = "genesis_part_loss_scale"
    done = training.cli("precision", "set", "fp32", "--agent", "parts", "--reason", "odd")
    assert done.returncode == 0, done.stdout + done.stderr
    seconds = training.wait_for(
        lambda: all(of(training, scales, part) == 1 for part in PARTS), "to be in FP32"
    )
    assert seconds < DEADLINE_SECONDS * crowding()
    [changed] = [e for e in training.events("precision_changed") if e.step > 0]
    assert changed.state.effective == "fp32"
    statistics = training.events("step_stats")
    assert sum(event.fp16 for event in statistics) == changed.step, "no part went on in FP16"
    critic, actor, temperature = (
        sum(
            p.attempted
            for e in statistics
            if e.step <= changed.step
            for p in e.parts
            if p.name == n
        )
        for n in PARTS
    )
    assert actor == temperature == (critic + 1) // 2, "all have taken their steps of the last batch"
    done = training.cli("precision", "clear", "--agent", "parts", "--reason", "it was the data")
    assert done.returncode == 0, done.stdout + done.stderr
    training.wait_for(
        lambda: all(of(training, scales, part) > 1 for part in PARTS), "to be in FP16"
    )
    assert len(training.events("started")) == 1


def test_a_killed_run_ends_as_an_undisturbed_one(make_daemon, plugin: Path) -> None:
    daemon = begin(make_daemon(python_path=plugin), epochs=4, batches=100, pause=0.01)
    steps = 4 * 100 * 2  # those of actor and temperature are half as many as the critic's

    def weights(run: dict[str, object]) -> dict[str, object]:
        """What *run* has trained, once it has ended."""
        daemon.wait_for(
            lambda: daemon.json("runs", "show", run["id"])["state"] == "succeeded", "to end a run"
        )
        return json.loads((daemon.home / "runs" / run["id"] / WEIGHTS).read_text())

    def is_in_the_middle() -> bool:
        """Whether the newest attempt has written a checkpoint, and has far to go."""
        saved, started = daemon.events("checkpoint_saved"), daemon.events("started")
        return bool(saved) and saved[-1].time > started[-1].time and saved[-1].step < steps * 3 / 4

    daemon.wait_for(lambda: daemon.events("finished"), "to end a run")
    undisturbed = weights(daemon.json("runs")[-1])
    assert undisturbed["steps"] == steps
    daemon.wait_for(is_in_the_middle, "to checkpoint another run")
    daemon.worker().kill()
    daemon.wait_for(lambda: daemon.events("resumed"), "to resume")
    assert 0 < daemon.events("resumed")[-1].step < steps
    [killed] = [
        run
        for run in daemon.json("runs")
        if len(daemon.json("runs", "show", run["id"])["attempts"]) == 2
    ]
    assert weights(killed) == undisturbed

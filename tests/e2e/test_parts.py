"""An agent whose job has five parts: each is seen by itself, all change precision together."""

import json
import math
import shutil
import signal
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.measuring.ports import free_port
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store
from tests.e2e.page.browser import Browser, missing_program
from tests.e2e.page.site import TOKEN
from tests.patience import crowding, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.long]

PARTS = ("world-model", "critic-a", "critic-b", "actor", "temperature")
EVERY_BATCH, EVERY_SECOND_BATCH = PARTS[:3], PARTS[3:]
STEPS_OF_BATCH = 4  # on average
WEIGHTS = "weights.json"
DEADLINE_SECONDS = 2.0


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory, quick_plugin: Path) -> Path:
    """The agent with parts, installed alone; it is made of the quick agent."""
    folder = shutil.copytree(quick_plugin, tmp_path_factory.mktemp("parts") / "plugin")
    for module in ("parts_agent.py", "parts_job.py"):
        shutil.copy(Path(__file__).with_name(module), folder)
    entry_points = folder / "quick_agent-1.0.dist-info" / "entry_points.txt"
    entry_points.write_text("[genesis.agents]\nparts = parts_agent:PartsAgent\n")
    return folder


def begin(daemon, **settings: object):
    """Start *daemon*, whose agent has these settings and trains in FP16; overflows come and go."""
    daemon.configure(
        ENABLE_FP16_TRAINING="true",
        GENESIS_CPU_HALF="true",
        GENESIS_BASELINE_EVERY_RUNS=0,
        FP16_LOSS_SCALE=2.0**24,
        FP16_GROWTH_INTERVAL=50,
        GENESIS_AGENTS__PARTS__SCHEDULE='"every 9d"',
        **{f"GENESIS_AGENTS__PARTS__SETTINGS__{name}": value for name, value in settings.items()},
    )
    return daemon.start()


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory, daemon_class, plugin: Path) -> Iterator:
    """A daemon whose agent trains without end, past overflows of two parts."""
    daemon = daemon_class(tmp_path_factory.mktemp("training") / "daemon", python_path=plugin)
    try:
        daemon.configure(GENESIS_API_PORT=free_port(), GENESIS_API_TOKEN=TOKEN)
        daemon.configure(GENESIS_GUARD_ENABLED="false")
        begin(daemon, EPOCHS=1_000_000, BATCHES_PER_EPOCH=200, PAUSE_SECONDS=0.02)
        overflows = "genesis_part_overflow_steps_total"
        for part in ("critic-a", "actor"):
            daemon.wait_for(lambda part=part: of(daemon, overflows, part) > 3, f"{part} overflow")
        for part in PARTS:
            daemon.wait_for(
                lambda part=part: math.isfinite(of(daemon, "genesis_part_grad_norm", part)),
                f"to apply a step of {part}",
            )
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
    assert len({steps[part] for part in EVERY_BATCH}) == 1
    assert steps["actor"] == steps["temperature"] == (steps["critic-a"] + 1) // 2
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
    assert shown["critic-a"]["overflows"] > 3
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


def read_api(daemon, path: str):
    """What the API answers to a program with the token."""
    url = f"http://127.0.0.1:{daemon.settings['GENESIS_API_PORT']}/api/{path}"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def flip(daemon, flag: str, *, scale_is_one: bool) -> None:
    """Write the *flag*, wait until all loss scales tell, and look when it was obeyed."""
    scales, written = "genesis_part_loss_scale", time.time()
    daemon.configure(ENABLE_FP16_TRAINING=flag)
    daemon.wait_for(
        lambda: all((of(daemon, scales, part) == 1) == scale_is_one for part in PARTS),
        f"to obey {flag}",
    )
    obeyed = daemon.events("precision_changed")[-1].time
    assert obeyed - written < DEADLINE_SECONDS * crowding()


def test_all_parts_change_precision_at_one_boundary(training) -> None:
    flip(training, "false", scale_is_one=True)
    assert effective(training) == [("fp32", "flag")]
    [changed] = [e for e in training.events("precision_changed") if e.step > 0]
    assert (changed.state.effective, changed.state.reason) == ("fp32", "flag")
    before = [e for e in training.events("step_stats") if e.step <= changed.step]
    after = [e for e in training.events("step_stats") if e.step > changed.step]
    assert {e.precision for e in before} == {"fp16"}
    assert {e.precision for e in after} == {"fp32"}
    assert {p.loss_scale for e in after for p in e.parts} == {1}
    attempted = {
        name: sum(p.attempted for e in before for p in e.parts if p.name == name) for name in PARTS
    }
    batches = attempted["world-model"]
    assert all(attempted[part] == batches for part in EVERY_BATCH)
    assert all(attempted[part] == (batches + 1) // 2 for part in EVERY_SECOND_BATCH)

    flip(training, "true", scale_is_one=False)
    assert effective(training) == [("fp16", "default")]
    assert len(training.events("started")) == 1
    [run] = training.json("runs")
    assert tuple(read_api(training, f"runs/{run['id']}")["parts"]) == PARTS


def effective(daemon) -> list[tuple[str, str]]:
    labels = daemon.metrics().labels("genesis_precision_info", agent="parts")
    return [(shown["effective"], shown["reason"]) for shown in labels]


def test_a_flag_that_changes_while_a_round_is_collected_holds_for_its_batches(
    make_daemon, plugin: Path
) -> None:
    daemon = begin(make_daemon(python_path=plugin), EPOCHS=1_000_000, BATCHES_PER_EPOCH=4)
    steps_of_round = 4 * STEPS_OF_BATCH
    daemon.wait_for(lambda: daemon.events("step_stats"), "to train")
    hold, held = (daemon.home / "agents" / "parts" / name for name in ("hold", "held"))
    for flag, precision in (("false", "fp32"), ("true", "fp16")):
        held.unlink(missing_ok=True)
        hold.touch()
        daemon.wait_for(held.exists, "to collect a round")
        reloads = daemon.log.count("settings_reloaded")
        daemon.configure(ENABLE_FP16_TRAINING=flag)
        daemon.wait_for(lambda n=reloads: daemon.log.count("settings_reloaded") > n, "to reload")
        time.sleep(1.0)  # the worker has the command, too
        hold.unlink()
        changes = len(daemon.events("precision_changed"))
        daemon.wait_for(lambda n=changes: len(daemon.events("precision_changed")) > n, "to obey")
        [*_, changed] = daemon.events("precision_changed")
        assert changed.state.effective == precision
        assert changed.step % steps_of_round == 0, "in the middle of a round"

        def later(since: int = changed.step) -> set[str]:
            return {e.precision for e in daemon.events("step_stats") if e.step > since}

        daemon.wait_for(later, "to go on")
        assert later() == {precision}


def test_a_killed_run_ends_as_an_undisturbed_one(make_daemon, plugin: Path) -> None:
    """Worker and daemon killed, and the daemon told to stop, at moments of one run."""
    daemon = make_daemon(python_path=plugin)
    daemon.configure(GENESIS_CHECKPOINT_INTERVAL_SECONDS=0.1)
    begin(daemon, EPOCHS=3, BATCHES_PER_EPOCH=10, PAUSE_SECONDS=0.01)
    steps = 3 * 3 * 10 * STEPS_OF_BATCH

    def made(run_id: str) -> dict[str, object]:
        """What the run has made, once it has ended."""
        path = daemon.home / "runs" / run_id / WEIGHTS
        daemon.wait_for(path.exists, "to end a run")
        return json.loads(path.read_text())

    daemon.wait_for(lambda: daemon.events("finished"), "to end a run")
    [first] = daemon.json("runs")
    undisturbed = made(first["id"])
    assert undisturbed["steps"] == steps
    with closing(Store.open(Settings(home=daemon.home))) as store:
        earlier_runs = 1
        disturbed = store.enqueue("parts", first_seed=first["seed"] - earlier_runs).id

    for attempts in (2, 3, 4):
        daemon.wait_for(lambda n=attempts: len(daemon.events("started")) == n, "to go on")
        reached = max((event.step for event in daemon.events("resumed")), default=0)
        begun = daemon.events("started")[-1].time
        daemon.wait_for(
            lambda begun=begun, reached=reached: any(
                e.time > begun and e.step > reached for e in daemon.events("checkpoint_saved")
            ),
            "to checkpoint further steps",
        )
        if attempts == 2:
            daemon.worker().kill()
        elif attempts == 3:
            daemon.kill9()
            wait_until(lambda: daemon.worker() is None, "the orphan to end")
            daemon.start()
        else:
            assert daemon.stop(signal.SIGTERM)[0] == 0
            daemon.start()
    assert made(disturbed) == undisturbed
    resumed = [event.step for event in daemon.events("resumed")]
    assert 0 < resumed[0] < resumed[1] < resumed[2] < steps


def test_the_guard_rolls_back_all_parts_and_changes_the_one_to_blame_alone(
    make_daemon, plugin: Path
) -> None:
    daemon = make_daemon(python_path=plugin)
    begin(daemon, EPOCHS=1_000_000, BATCHES_PER_EPOCH=20, STEEP_PART="critic-b")
    daemon.wait_for(lambda: effective(daemon) == [("fp32", "guard")], "to roll back")
    [trip] = daemon.metrics().labels("genesis_guard_trips_total")
    assert trip["agent"] == "parts"
    first = min(daemon.home.glob("guard/parts/*.json"))
    assert json.loads(first.read_text())["numbers"]["part"] == "critic-b"
    daemon.wait_for(lambda: effective(daemon) == [("fp16", "default")], "to descend")
    [found] = daemon.events("rung_searched")
    assert (found.modules, found.parts) == ((), {"critic-b": "bf16"})
    assert daemon.metrics().value("genesis_raised_modules", agent="parts") == 1
    assert daemon.events("precision_changed")[-1].state.parts == {"critic-b": "bf16"}

    def explained() -> str:
        return daemon.cli("precision", "explain", "parts").stdout

    daemon.wait_for(lambda: "Parts         critic-b:bf16" in explained(), "to store it")
    told = explained()
    assert "part critic-b" in told
    assert "BF16 in part critic-b suffices" in told
    assert "BF16 in part critic-b (other parts as before)" in told
    assert "KEEP_FP32=part:critic-b; no setting gives a part a half type" in told
    overflows = of(daemon, "genesis_part_overflow_steps_total", "critic-b")
    for part in PARTS:
        before = of(daemon, "genesis_part_steps_total", part)
        daemon.wait_for(
            lambda p=part, b=before: of(daemon, "genesis_part_steps_total", p) > b + 20,
            f"to train {part} on",
        )
    assert (of(daemon, "genesis_part_loss_scale", "critic-b"), overflows) == (
        1,
        of(daemon, "genesis_part_overflow_steps_total", "critic-b"),
    )
    daemon.wait_for(  # the last statistics may be those in FP32
        lambda: of(daemon, "genesis_part_loss_scale", "actor") > 1, "to scale the actor's loss"
    )
    daemon.worker().kill()
    changes = len(daemon.events("precision_changed"))
    daemon.wait_for(lambda: len(daemon.events("precision_changed")) > changes, "to resume")
    assert daemon.events("precision_changed")[-1].state.parts == {"critic-b": "bf16"}
    done = daemon.cli("precision", "set", "fp16", "--agent", "parts", "--reason", "FP16 only")
    assert done.returncode == 0, done.stderr
    daemon.wait_for(lambda: effective(daemon) == [("fp16", "operator")], "to obey the operator")
    assert daemon.events("precision_changed")[-1].state.parts == {"critic-b": "fp32"}

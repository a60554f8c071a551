"""A daemon whose agent climbs the guard's ladder and comes down, under kills and commands.

``python -m tests.e2e.ladder --rounds 30 [--seed N]`` does something at as many random moments, and
checks after each that store, page, metrics and worker agree on one state. Every second round waits
until the guard has raised the module to blame. With ``--picture FILE``
nothing is disturbed: a real Prometheus scrapes the daemon, and its answers are drawn.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measuring.ports import free_port
from infrastructure.events import PrecisionState
from tests.e2e.conftest import Daemon, install_quick_agent
from tests.e2e.test_control_api import ask
from tests.patience import wait_until

HERE = Path(__file__).parent
RAISED = ("fp16", "default", 1.0)  # of `shown`
PANELS = ("Precision in force", "Loss scale and overflows", "The guard", "Modules raised to FP32")


def guilty_plugin(folder: Path) -> Path:
    """A folder that holds the guilty agent as installed: put it on the path."""
    install_quick_agent(folder)
    shutil.copy(HERE / "guilty_agent.py", folder)
    entry_points = folder / "quick_agent-1.0.dist-info" / "entry_points.txt"
    entry_points.write_text("[genesis.agents]\nguilty = guilty_agent:GuiltyAgent\n")
    return folder


def configure(daemon: Daemon) -> None:
    """Let the guilty agent train without end in FP16 on the CPU."""
    daemon.configure(
        GENESIS_CPU_HALF="true",
        GENESIS_BASELINE_INTERVAL_STEPS=0,
        GENESIS_BASELINE_EVERY_RUNS=0,
        GENESIS_AGENTS__GUILTY__SCHEDULE='"every 1s"',
        GENESIS_AGENTS__GUILTY__SETTINGS__EPOCHS=1_000_000,
        GENESIS_AGENTS__GUILTY__SETTINGS__BATCHES_PER_EPOCH=500,
        GENESIS_AGENTS__GUILTY__SETTINGS__PAUSE_SECONDS=0.01,
    )


def shown(daemon: Daemon) -> tuple[str, str, float] | None:
    """Effective precision, its reason and the number of modules raised, by the metrics."""
    metrics = daemon.metrics()
    for labels in metrics.labels("genesis_precision_info", agent="guilty"):
        raised = metrics.value("genesis_raised_modules", agent="guilty")
        return labels["effective"], labels["reason"], raised
    return None


def disagreement(daemon: Daemon) -> str:
    """What differs between store, page, metrics and the newest worker; empty if nothing does."""
    explained = daemon.json("precision", "explain", "guilty")
    run, decisions = explained.get("run"), explained.get("decisions") or []
    changes = daemon.events("precision_changed")
    if not run or not changes or daemon.worker() is None:
        return "no worker has acknowledged anything"
    try:
        view = ask(daemon.home, "GET", "/api/agents/guilty/precision")
    except OSError:
        return "the page does not answer"
    state, names = changes[-1].state, ("effective", "reason", "modules")
    worker = (state.effective, state.reason, ",".join(state.modules))
    guarded = ",".join(decisions[0]["modules"]) if decisions else ""
    told = {
        "store": tuple(run["precision"].get(name, "") for name in names),
        "page": tuple((view["acknowledged"] or {}).get(name, "") for name in names),
        "page's decision": worker  # it is of a run that begins now: without this one's fallback
        if state.reason == "floor_policy"
        else (view["effective"], view["reason"], worker[2]),
        "metrics": shown(daemon) and (*shown(daemon)[:2], worker[2]),
        "modules in the metrics": (*worker[:2], worker[2] if _counts(daemon, state) else "others"),
        "guard": (*worker[:2], "" if state.effective == "fp32" else guarded),
    }
    different = [f"{whose} {what}" for whose, what in told.items() if what != worker]
    return f"the worker is in {worker}, but {'; '.join(different)}" if different else ""


def _counts(daemon: Daemon, state: PrecisionState) -> bool:
    metrics = shown(daemon)
    return metrics is not None and metrics[2] == len(state.modules)


def disturb(daemon: Daemon, chance: random.Random) -> str:
    """Do one thing that a crash or an operator does; say which."""
    kind = chance.choice(("worker", "daemon", "fp32", "half", "flag", "clear", "nothing"))
    if kind == "worker" and (worker := daemon.worker()) is not None:
        os.kill(worker.pid, signal.SIGKILL)
    elif kind == "daemon":
        daemon.kill9()
        daemon.start()
    elif kind == "fp32":
        daemon.cli("precision", "set", "fp32", "--agent", "guilty", "--reason", "a trial")
    elif kind == "half":
        daemon.cli("precision", "clear", "--agent", "guilty", "--reason", "the trial is over")
    elif kind == "flag":
        daemon.configure(ENABLE_FP16_TRAINING="false")
        time.sleep(chance.uniform(0.0, 3.0))
        daemon.configure(ENABLE_FP16_TRAINING="true")
    elif kind == "clear":
        daemon.cli("precision", "clear", "--guard", "guilty", "--reason", "try again")
    return kind


def play(daemon: Daemon, rounds: int, seed: int) -> None:
    """Disturb *daemon* so often at random moments; each time all must agree again.

    Raises:
        AssertionError: They did not.
    """
    chance = random.Random(seed)
    met = 0
    for number in range(rounds):
        if number % 2 == 0:
            daemon.cli("precision", "clear", "--agent", "guilty", "--reason", "to its rung")
            daemon.wait_for(lambda: shown(daemon) == RAISED, "to raise the module to blame")
        time.sleep(chance.uniform(0.0, 6.0))
        before = shown(daemon)
        met += before == RAISED
        kind = disturb(daemon, chance)
        last = [""]

        def agree(last: list[str] = last) -> bool:
            now = disagreement(daemon)
            if now != last[0]:
                sys.stderr.write(f"  {now}\n")
            last[0] = now
            return not now

        try:
            wait_until(agree, f"round {number} ({kind}): all to agree")
        except AssertionError as error:
            raise AssertionError(f"{error}: {last[0]}") from None
        sys.stdout.write(f"round {number}: {before}, {kind}, then {shown(daemon)}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{met} of {rounds} rounds met a raised module\n")


def draw(daemon: Daemon, minutes: float, out: Path, folder: Path) -> None:
    """Let the guard climb and come down while a Prometheus scrapes it, and draw that."""
    from deploy.grafana.answers import Prometheus, Window
    from deploy.grafana.dashboards import FOLDER
    from deploy.grafana.pictures import picture

    port = free_port()
    settings = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [
            {"job_name": "genesis", "static_configs": [{"targets": [f"127.0.0.1:{daemon.port}"]}]}
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(settings))  # JSON is YAML
    server = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        daemon.start()
        wait_until(lambda: shown(daemon) is not None, "the agent to train")
        begun = time.time() - 5
        time.sleep(60 * minutes)
        end = time.time()
        window = Window(begin=begun, end=end, step=max(1.0, (end - begun) / 240), rate_interval=4.0)
        dashboard = json.loads((FOLDER / "genesis-agent.json").read_text())
        panels = [panel for panel in dashboard["panels"] if panel["title"] in PANELS]
        for number, panel in enumerate(panels):
            panel["gridPos"] = {"x": 0, "y": 7 * number, "w": 24, "h": 7}
        title = "The guard's ladder"
        url = f"http://127.0.0.1:{port}"
        figure = picture(
            {**dashboard, "title": title, "panels": panels},
            Prometheus(url, {"agent": "guilty"}),
            window,
        )
        figure.savefig(out, dpi=80)
    finally:
        server.terminate()
        server.wait(timeout=60)


def main() -> None:
    """Disturb a ladder, or draw one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--picture", type=Path, help="draw an undisturbed ladder into this file")
    parser.add_argument("--minutes", type=float, default=3.0, help="that the picture shows")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the daemon ends, too
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as text:
        folder = Path(text)
        plugin = folder / "plugin"
        plugin.mkdir()
        daemon = Daemon(folder / "daemon", python_path=guilty_plugin(plugin))
        configure(daemon)
        cooldown = 900 if given.picture is None else 40  # most rounds are to meet a raised module
        daemon.configure(GENESIS_GUARD_REENABLE="auto", GENESIS_GUARD_COOLDOWN_SECONDS=cooldown)
        try:
            if given.picture is not None:
                draw(daemon, given.minutes, given.picture, folder)
            else:
                play(daemon.start(), given.rounds, given.seed)
        finally:
            daemon.clean_up()


if __name__ == "__main__":
    main()

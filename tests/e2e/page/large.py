"""``python -m tests.e2e.page.large``: the page with 1,000 agents and 100,000 runs, in Chromium.

Prints for each page the milliseconds to the first paint, of three visits, and what axe finds.
"""

import random
import shutil
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from sqlalchemy import insert

from benchmarks.measuring.ports import free_port
from genesis_fp16.domain.run import Run, RunState
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store, schema
from tests.e2e.conftest import Daemon
from tests.e2e.page.browser import Browser
from tests.e2e.page.site import TOKEN, Site
from tests.patience import wait_until

AGENTS, RUNS, DAYS, VISITS = 1000, 100_000, 30, 3
STATES = [RunState.SUCCEEDED] * 8 + [RunState.FAILED, RunState.CANCELLED]
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
IDLE = """
from infrastructure.agent_contract import CONTRACT_VERSION, Schedule


class Idle:
    contract_version = CONTRACT_VERSION

    def __init__(self, name):
        self.name = name

    def schedule(self):
        return Schedule(cron="0 3 * * *", timezone="Europe/Helsinki", catch_up="none")

    def settings_model(self):
        return None

    def collect(self, context):
        return iter(())

    def build_job(self, context, buffer):
        raise NotImplementedError

    def publish(self, context, model, report):
        pass


"""


def install(folder: Path) -> Path:
    """Put the agents into *folder* as an installer would."""
    metadata = folder / "idle_agents-1.0.dist-info"
    metadata.mkdir(parents=True)
    factories = (f"def a{n}():\n    return Idle('agent-{n:03d}')\n" for n in range(AGENTS))
    (folder / "idle_agents.py").write_text(IDLE + "\n\n".join(factories))
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: idle-agents\nVersion: 1.0\n")
    points = "".join(f"agent-{n:03d} = idle_agents:a{n}\n" for n in range(AGENTS))
    (metadata / "entry_points.txt").write_text(f"[genesis.agents]\n{points}")
    return folder


def fill(home: Path) -> None:
    """Write the runs of a month into the database of *home*."""
    rng, now = random.Random(0), time.time()
    rows = []
    for number in range(RUNS):
        at = now - rng.random() * DAYS * 86400.0
        run = Run(
            id=f"20260101T000000-{number:08x}",
            agent=f"agent-{number % AGENTS:03d}",
            number=number // AGENTS + 1,
            trigger="schedule",
            state=rng.choice(STATES),
            seed=number,
            due_at=at,
            created_at=at,
            available_at=at,
            started_at=at,
            finished_at=min(now, at + rng.expovariate(1 / 600)),
            active_seconds=600.0,
            steps=1000,
            half_steps=900,
            precision={"requested": "fp16", "effective": "fp16", "reason": "default"},
            primary_metric="nll",
            primary_value=rng.random(),
            higher_is_better=False,
            metrics={"nll": 0.1},
        )
        rows.append({**asdict(run), "state": run.state.value})
    with closing(Store.open(Settings(home=home))) as store, store._engine.begin() as connection:
        for first in range(0, RUNS, 5000):
            connection.execute(insert(schema.runs), rows[first : first + 5000])


def main() -> None:
    """Fill a home, serve it, visit its pages."""
    folder = Path(tempfile.mkdtemp(prefix="large-page-"))
    daemon = Daemon(folder / "daemon", python_path=install(folder / "plugins"))
    site = Site(daemon, free_port())
    daemon.home.mkdir(parents=True)
    fill(daemon.home)
    browser = None
    try:
        daemon.start()
        wait_until(
            lambda: len(site._ready()) >= AGENTS, "all agents", idle_seconds=1800, most_seconds=1800
        )
        browser = Browser(site.url, folder / "profile")
        browser.sign_in(TOKEN)
        first, second = (run["id"] for run in site.api("GET", "/api/runs?limit=2"))
        for path in (
            *("/", "/?query=agent-77", "/?page=11", "/runs", "/timeline", "/timeline?hours=720"),
            *("/agents/agent-077", f"/runs/{first}", f"/compare?first={first}&second={second}"),
        ):
            paints = []
            for _ in range(VISITS):
                browser.open(path)
                wait_until(lambda: browser.run(PAINT), "a paint")
                paints.append(round(browser.run(PAINT)))
            sys.stdout.write(f"{path}: {paints} ms, axe: {browser.violations() or 'clean'}\n")
    finally:
        if browser is not None:
            browser.close()
        daemon.clean_up()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()

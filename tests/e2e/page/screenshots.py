"""``python -m tests.e2e.page.screenshots``: the pictures of the page in ``docs/``.

With ``--report FILE``, the ``report.html`` of a whole sweep of the precision lab: its pictures.
"""

import argparse
import json
import random
import tempfile
from pathlib import Path

from benchmarks.measuring.ports import free_port
from tests.e2e.conftest import Daemon
from tests.e2e.page.browser import DESKTOP, PHONE, Browser, missing_program
from tests.e2e.page.site import TOKEN, Site, install_agents
from tests.patience import wait_until

DOCS = Path(__file__).parents[3] / "docs" / "pictures"

ROOM = """schedule = "every 6h"
[source]
path = "records"
format = "records"
group = "day"
[spec.observation]
degrees = { type = "box" }
watts = { type = "box" }
[spec.targets]
later = { type = "box" }
"""


def add_configured_agents(home: Path) -> None:
    """Write the files of agents that heat rooms, and what each hour of heating led to."""
    for folder in (home / "agents.d", home / "records"):
        folder.mkdir(parents=True)
    for name in ("kitchen", "library", "greenhouse"):
        (home / "agents.d" / f"{name}.toml").write_text(ROOM)
    chance = random.Random(0)
    with (home / "records" / "rooms.jsonl").open("w") as file:
        for day in range(40):
            degrees = chance.uniform(10, 25)
            for _hour in range(24):
                watts = chance.uniform(0, 2000)
                later = degrees + watts / 500 - 0.2 * (degrees - 8)
                record = {"day": day, "degrees": degrees, "watts": watts, "later": later}
                file.write(json.dumps(record) + "\n")
                degrees = later


def take(site: Site, browser: Browser) -> None:
    """Take the pictures, of a run that is rolled back by hand and returns to half precision."""
    run, end = f"/runs/{site.newest_run('quick')}", "document.getElementById('curves').dataset"
    browser.open(run)
    wait_until(lambda: browser.run(f"{end}.overflows >= 8"), "overflows")
    change = {"agent": "quick", "reason": "the loss looks odd since the new data"}
    site.api("POST", "/api/precision/set", change | {"precision": "fp32"})
    wait_until(lambda: "FP32" in browser.text(".head"), "the rollback")
    step = browser.run(f"Number({end}.step)")
    wait_until(lambda: browser.run(f"{end}.step > {step + 400}"), "steps in FP32")
    browser.open("/")
    browser.picture(DOCS / "page-agents.png")
    browser.look(size=PHONE, dark=True)
    browser.picture(DOCS / "page-agents-phone.png", until="tbody tr:nth-child(4)")
    browser.look(size=DESKTOP)
    site.api("POST", "/api/precision/clear", change | {"reason": "it was the data"})
    browser.open(run)
    wait_until(lambda: "FP16" in browser.text(".head"), "half precision again")
    step = browser.run(f"Number({end}.step)")
    wait_until(lambda: browser.run(f"{end}.step > {step + 800}"), "steps in FP16")
    browser.picture(DOCS / "page-run.png", until="#numbers")
    browser.look(size=PHONE, dark=True)
    browser.open(run)
    wait_until(lambda: browser.run(f"{end}.points > 4"), "the curve")
    browser.picture(DOCS / "page-run-phone.png", until="#charts")
    browser.look(size=DESKTOP)
    browser.open("/agents/stormy")
    browser.picture(DOCS / "page-agent.png")
    browser.look(dark=True)
    browser.open("/agents/stormy/guard")
    browser.picture(DOCS / "page-guard.png", until="#evidence ~ .card")


def take_report(report: Path) -> None:
    """Take the pictures of the top of *report*, on a desktop, and on a phone in the dark."""
    with tempfile.TemporaryDirectory() as name:
        browser = Browser(report.absolute().as_uri(), Path(name) / "profile")
        try:
            browser.open("")
            browser.picture(DOCS / "precision-lab.png", until="figure")
            browser.look(size=PHONE, dark=True)
            browser.picture(DOCS / "precision-lab-phone.png", until="figure")
        finally:
            browser.close()


def main() -> None:
    """Start what is needed, take the pictures, end everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", type=Path, help="report of the lab, instead of the page")
    given = parser.parse_args()
    if problem := missing_program():
        raise SystemExit(problem)
    if given.report is not None:
        take_report(given.report)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plugins = install_agents(folder / "plugins", hostile=False)
        daemon = Daemon(folder / "daemon", python_path=plugins)
        add_configured_agents(daemon.home)
        site = Site(daemon, free_port())
        try:
            browser = Browser(site.start(hostile=False).url, folder / "profile")
            try:
                browser.sign_in(TOKEN)
                take(site, browser)
            finally:
                browser.close()
        finally:
            daemon.clean_up()


if __name__ == "__main__":
    main()

"""The real daemon with agents in every state that the page shows."""

import http.client
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlencode

from genesis_fp16.plugins.model_versions import (
    DataFacts,
    ModelVersion,
    describe_published,
    keep_version,
)
from infrastructure.events import EventWriter
from infrastructure.events.event import MismatchMeasured
from infrastructure.events.mismatch_report import MismatchReport
from tests.e2e.conftest import Daemon

TOKEN = "a-token-for-the-page-0123456789"
HERE = Path(__file__).parent
REPORT = """<!doctype html><html lang="en"><title>Precision report</title>
<h1>Precision report</h1><script>document.title = 'taken'</script></html>"""


HOSTILE = "hostile = page_agents:HostileAgent\nbroken = broken_agent:Broken\n"


def install_agents(folder: Path, *, hostile: bool = True) -> Path:
    """Put the agents into *folder* as an installer would; put that on the path.

    Without *hostile*, as the documentation's pictures show them, all of them mean well.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(HERE.with_name("quick_agent.py"), folder)
    shutil.copy(HERE / "agents.py", folder / "page_agents.py")
    shutil.copy(HERE / "broken_agent.py", folder)
    metadata = folder / "page_agents-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: page-agents\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[genesis.agents]\n"
        "quick = quick_agent:QuickAgent\n"
        f"stormy = page_agents:StormyAgent\n{HOSTILE if hostile else ''}"
    )
    return folder


class Site:
    """A daemon with its API on TCP, whose agent `quick` trains until it is stopped.

    `stormy` is rolled back by the guard, `hostile` fails, `broken` cannot be imported.
    """

    def __init__(self, daemon: Daemon, port: int) -> None:
        self.daemon, self.port = daemon, port
        daemon.configure(
            GENESIS_API_PORT=port,
            GENESIS_API_TOKEN=TOKEN,
            GENESIS_SLOTS=3,
            GENESIS_CPU_HALF="true",
            GENESIS_MAX_ATTEMPTS=1,
            GENESIS_BASELINE_EVERY_RUNS=0,
            GENESIS_GUARD_WINDOW_STEPS=40,
            GENESIS_GUARD_LADDER="false",  # a search may or may not end before the run
            FP16_LOSS_SCALE=2.0**24,
            FP16_GROWTH_INTERVAL=100,
            GENESIS_AGENTS__QUICK__SETTINGS__EPOCHS=1_000_000,
            GENESIS_AGENTS__QUICK__SETTINGS__BATCHES_PER_EPOCH=200,
            GENESIS_AGENTS__QUICK__SETTINGS__PAUSE_SECONDS=0.02,
            GENESIS_AGENTS__STORMY__SETTINGS__EPOCHS=3,
            GENESIS_AGENTS__STORMY__SETTINGS__BATCHES_PER_EPOCH=50,
            GENESIS_AGENTS__STORMY__SETTINGS__PAUSE_SECONDS=0.02,
        )

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{self.port}"

    def start(self, *, hostile: bool = True) -> "Site":
        """Start the daemon, and with it a run of each agent; wait until each is in its state."""
        agents = {"quick", "stormy", "hostile"} if hostile else {"quick", "stormy"}
        daemon = self.daemon.start()
        report = daemon.home / "reports" / "sweep" / "report.html"
        report.parent.mkdir(parents=True)
        report.write_text(REPORT)
        daemon.wait_for(lambda: self._ready() >= agents, "to know agents")
        daemon.wait_for(lambda: self._states("stormy")[-1:] == ["succeeded"], "to end the storm")
        if hostile:
            daemon.wait_for(lambda: self._states("hostile")[-1:] == ["failed"], "to see a failure")
        daemon.wait_for(lambda: self.overflows() >= 5, "to train past overflows")
        return self

    def api(self, method: str, path: str, body: object = None) -> object:
        """What the API answers to a program with the token."""
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        status, _, content = self.ask(method, path, headers, json.dumps(body) if body else None)
        assert status < 300, content
        return json.loads(content)

    def ask(
        self, method: str, path: str, headers: Mapping[str, str], body: str | None = None
    ) -> tuple[int, dict[str, str], str]:
        """Status, headers and content of an answer; no redirection is followed."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, dict(headers))
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read().decode()
        finally:
            connection.close()

    def send_form(
        self, path: str, fields: Mapping[str, str], headers: Mapping[str, str]
    ) -> tuple[int, dict[str, str], str]:
        """Send a form as a browser would, with *headers*."""
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        return self.ask("POST", path, {**kind, **headers}, urlencode(fields))

    def newest_run(self, agent: str) -> str:
        """Id of the agent's newest run."""
        [run] = self.api("GET", f"/api/runs?agent={agent}&limit=1")
        return run["id"]

    def changes(self) -> list[dict[str, str]]:
        """The audit trail, newest first."""
        return self.api("GET", "/api/audit?limit=100")

    def keep_two_models(self, agent: str) -> Path:
        """Keep two versions of the agent's model, as its runs would; the path of the model."""
        folder = self.daemon.home / "agents" / agent
        model = folder / "published" / "model.bin"
        model.parent.mkdir(parents=True)
        replaced = None
        for number, name in enumerate(("first", "second")):
            model.write_text(name)
            version = ModelVersion(
                id=name,
                run_id=self.newest_run(agent),
                published_at=float(number),
                replaced=replaced,
                reason="better",
                metrics={"mse": 0.5},
                data=DataFacts(transitions=1, size=1, sha256="0"),
                files=describe_published(folder),
            )
            keep_version(folder, version, keep=5)
            replaced = name
        return model

    def write_mismatch(self, agent: str) -> None:
        """Append to the newest run of *agent* what a policy's worker would have measured."""
        fields = {"policy": "fp16", "rollout": "bf16", "tokens": 900, "sequences": 64}
        fields |= dict.fromkeys(("k1", "k2", "k3"), 0.0021)
        fields |= {"mean_difference": 0.01, "max_difference": 0.3, "pearson": 0.99}
        fields |= {"chi2_token": 0.01, "chi2_sequence": 0.2, "slope": 1e-3}
        fields |= {"effective_sample_size": 0.9, "sequence_std": 0.2, "combinations": []}
        report = MismatchReport.model_validate(fields)
        attempts = self.daemon.home / "runs" / self.newest_run(agent) / "attempts"
        with EventWriter(attempts / "1" / "events.ndjson") as write:
            write(MismatchMeasured(step=70, round=7, report=report))

    def overflows(self) -> float:
        """Overflows of `quick`."""
        return self.daemon.metrics().value("genesis_fp16_overflow_steps_total", agent="quick")

    def _ready(self) -> set[str]:
        if self.daemon.get("/readyz")[0] != 200:
            return set()
        return {
            agent["name"] for agent in self.api("GET", "/api/agents") if agent["state"] == "ready"
        }

    def _states(self, agent: str) -> list[str]:
        return [run["state"] for run in self.api("GET", f"/api/runs?agent={agent}")]

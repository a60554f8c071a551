"""Homes that earlier releases have written: the daemon of today takes each over, losing nothing.

`write_home` wrote them with the code of the release that names the archive. ``facts.json`` in it
holds the answers of that release's own commands.
"""

import json
import sqlite3
import tarfile
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

import pytest
from dotenv import dotenv_values

from infrastructure.events import Event, EventTail
from infrastructure.world_model import WorldModel
from tests.e2e.upgrades.write_home import CONFIGURED, PROBE, SLOW, install_agents

pytestmark = pytest.mark.e2e

ARCHIVES = sorted(Path(__file__).with_name("homes").glob("*.tar.xz"))
LATEST = "5e565fe8"  # older homes are taken over among the long tests
TERMINAL = ("succeeded", "failed", "cancelled")
PRIMARY_KEYS = {
    "audit": ("id",),
    "attempts": ("run_id", "number"),
    "guard_decisions": ("id",),
    "overrides": ("id",),
    "pauses": ("agent",),
    "runs": ("id",),
}
IDENTITY = ("agent", "number", "trigger", "seed", "due_at", "created_at", "incarnation", "pid")
MOVED = {"log", "events_file"}  # absolute paths, which name the folder that a home is in
REMOVED = {"fleet"}  # attempts shared a worker in releases with GENESIS_FLEET
Row = Mapping[str, object]


class Home:
    """A home that was unpacked, and the daemon of today in it.

    Attributes:
        facts: Answers of the release that wrote it.
        rows: Rows that it left, by table and primary key.
        files: Files that no later run changes, by path.
        weights: Weights of the published models, by the name of their file.
        buffers: Segments of the replay buffers, by path.
        under_way: Id of the run that was in progress, by agent.
        checkpoints: Step of its newest checkpoint, by agent.
    """

    def __init__(self, daemon) -> None:
        self.daemon, self.folder = daemon, daemon.home
        self.facts = json.loads((daemon.folder / "facts.json").read_text())
        self.rows = self.read_rows()
        runs = self.rows["runs"].values()
        self.under_way = {r["agent"]: r["id"] for r in runs if r["state"] not in TERMINAL}
        self.files = self.read_files("runs/**/*", "guard/**/*", "agents/*/versions/**/*")
        self.buffers = self.read_files("agents/*/replay/*.jsonl")
        self.weights = self.weights_below("agents/*/published")
        self.checkpoints = {
            agent: max(int(path.stem.removeprefix("step-")) for path in self.checkpoints_of(run))
            for agent, run in self.under_way.items()
        }

    def read_rows(self) -> dict[str, dict[tuple[object, ...], Row]]:
        """Rows of each table that holds what operators and runs have left."""
        rows_by_table = {}
        with closing(sqlite3.connect(self.folder / "genesis.db")) as database:
            database.row_factory = sqlite3.Row
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
            for table in tables & PRIMARY_KEYS.keys():
                rows = [dict(row) for row in database.execute(f"SELECT * FROM {table}")]
                rows_by_table[table] = {
                    tuple(row[key] for key in PRIMARY_KEYS[table]): row for row in rows
                }
        return rows_by_table

    def read_files(self, *patterns: str) -> dict[str, bytes]:
        """Files that match, but those of the runs that were in progress, by path."""
        changing = tuple(f"runs/{run}/" for run in self.under_way.values())
        paths = [path for pattern in patterns for path in self.folder.glob(pattern)]
        named = {str(path.relative_to(self.folder)): path for path in paths if path.is_file()}
        return {
            name: path.read_bytes() for name, path in named.items() if not name.startswith(changing)
        }

    def weights_below(self, folders: str) -> set[str]:
        """Names of the files of weights, which contain their hash."""
        return {path.name for path in self.folder.glob(f"{folders}/weights-*.pt")}

    def checkpoints_of(self, run: str) -> list[Path]:
        return list((self.folder / "runs" / run / "checkpoints").glob("step-*.pt"))

    def state(self, run: str) -> object:
        return self.read_rows()["runs"][run,]["state"]

    def attempts(self, run: str) -> list[Row]:
        rows = self.read_rows()["attempts"].values()
        return sorted((row for row in rows if row["run_id"] == run), key=lambda row: row["number"])

    def events(self, run: str, attempt: object, kind: str) -> list[Event]:
        """Events of *kind* of an attempt."""
        path = self.folder / "runs" / run / "attempts" / str(attempt) / "events.ndjson"
        return [event for event in EventTail(path).read() if event.kind == kind]


@pytest.fixture(
    params=[
        pytest.param(path, id=name, marks=() if name.startswith(LATEST) else pytest.mark.long)
        for path in ARCHIVES
        for name in [path.name.removesuffix(".tar.xz")]
    ]
)
def home(request, tmp_path: Path, make_daemon: Callable[..., object]) -> Home:
    """The home in another folder than it was written in, with its own settings file.

    Only the home, the port, and how slowly its runs train are changed there.
    """
    folder = tmp_path / "daemon"
    with tarfile.open(request.param) as archive:
        safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Python 3.11.4
        archive.extractall(folder, **safely)
    operators = dotenv_values(folder / ".env", interpolate=False)
    daemon = make_daemon(folder, python_path=install_agents(tmp_path / "plugins"))
    operators |= {"GENESIS_HOME": daemon.home, "GENESIS_METRICS_PORT": daemon.port}
    daemon.settings = operators
    daemon.configure()
    for path in daemon.home.glob(f"agents/*/{SLOW}"):
        path.unlink()
    return Home(daemon)


def test_a_home_of_an_earlier_release_is_taken_over(home: Home) -> None:
    assert_models_predict_as_before(home)
    home.daemon.start()
    home.daemon.wait_for(
        lambda: all(home.state(run) in TERMINAL for run in home.under_way.values()),
        "to end the runs that were in progress",
    )
    assert_runs_went_on(home)
    assert_rows_are_kept(home)
    assert_files_are_kept(home)
    assert_answers_are_kept(home)
    if set(home.under_way) <= set(CONFIGURED):
        assert_shared_attempts_are_retried_alone(home)
        assert_only_new_records_are_read(home)
    else:
        assert_decisions_are_in_force(home)


def assert_models_predict_as_before(home: Home) -> None:
    """The published models and their kept versions load, with the weights that they had."""
    assert home.facts["predictions"]
    for folder, values in home.facts["predictions"].items():
        [prediction] = WorldModel.load(home.folder / folder).predict_batch([{"x": PROBE}], [{}])
        assert prediction.next_state == pytest.approx(values, rel=1e-5), folder


def assert_runs_went_on(home: Home) -> None:
    """Each run that was in progress resumed from its checkpoint and succeeded."""
    for agent, run in home.under_way.items():
        assert home.state(run) == "succeeded", home.read_rows()["runs"][run,]["error"]
        before = [row for row in home.rows["attempts"].values() if row["run_id"] == run]
        *earlier, last = home.attempts(run)
        assert len(earlier) == len(before)
        assert all(row["finished_at"] is not None for row in earlier)
        [resumed] = home.events(run, last["number"], "resumed")
        assert resumed.step >= home.checkpoints[agent] > 0
        assert home.read_rows()["runs"][run,]["failures"] == 0


def assert_rows_are_kept(home: Home) -> None:
    """No row is gone, and none has changed but those of the runs that went on."""
    after = home.read_rows()
    for table, rows in home.rows.items():
        assert rows or table == "pauses" or home.under_way.keys() <= set(CONFIGURED), table
        for key, row in rows.items():
            run = row["id"] if table == "runs" else row.get("run_id")
            went_on = table in ("runs", "attempts") and run in home.under_way.values()
            kept = {name: row[name] for name in IDENTITY if name in row} if went_on else row
            assert kept.items() <= after[table][key].items()


def assert_files_are_kept(home: Home) -> None:
    """Files of ended runs are as they were; replay buffers only grow; no model is lost."""
    after = home.read_files("runs/**/*", "guard/**/*", "agents/*/versions/**/*")
    assert {name: after.get(name) for name in home.files} == home.files
    assert home.weights
    assert home.weights_below("agents/**") >= home.weights
    buffers = home.read_files("agents/*/replay/*.jsonl")
    assert buffers.keys() >= home.buffers.keys()
    for name, records in home.buffers.items():
        assert buffers[name].startswith(records), name


def assert_answers_are_kept(home: Home) -> None:
    """Commands answer about what had ended as the old ones did."""
    ended = [run for run in home.facts["runs"] if run not in home.under_way.values()]
    for run in ended:
        assert_includes(home.daemon.json("runs", "show", run), home.facts["runs"][run])
    for agent, models in home.facts["models"].items():
        kept = {
            version["id"]: version
            for version in home.daemon.json("models", "list", agent)["versions"]
        }
        for version in models["versions"]:
            told = {name: fact for name, fact in version.items() if name != "in_use"}
            assert_includes(kept[version["id"]], told)
    for agent, told in home.facts["precision"].items():
        explained = home.daemon.json("precision", "explain", agent)
        assert_includes(explained["decisions"], told["decisions"])
        assert_includes(explained["overrides"], told["overrides"])


def assert_includes(answer: object, before: object) -> None:
    """*answer* says all that *before* says, but what moved or was removed; it may say more."""
    if isinstance(before, dict):
        for name in before.keys() - MOVED - REMOVED:
            assert_includes(answer[name], before[name])
    elif isinstance(before, list):
        assert len(answer) == len(before)
        for now, then in zip(answer, before, strict=True):
            assert_includes(now, then)
    elif before is not None:
        assert answer == before


def assert_decisions_are_in_force(home: Home) -> None:
    """The operator's override and the guard's trip decide about runs of today."""
    run = home.under_way["wave"]
    last = home.attempts(run)[-1]["number"]
    [changed] = home.events(run, last, "precision_changed")
    assert (changed.state.effective, changed.state.reason) == ("bf16", "operator")

    done = home.daemon.cli("run", "stormy")
    assert done.returncode == 0, done.stderr
    [newest, *_] = [run for run in home.daemon.json("runs") if run["agent"] == "stormy"]
    assert (newest["number"], newest["state"], newest["half_steps"]) == (2, "succeeded", 0)
    explained = home.daemon.cli("precision", "explain", "stormy").stdout
    assert "reason guard" in explained
    assert "precision clear --guard stormy" in explained
    assert (
        home.daemon.metrics().labels("genesis_guard_state", agent="stormy")[0]["state"] == "tripped"
    )


def assert_shared_attempts_are_retried_alone(home: Home) -> None:
    """Each run that shared a worker goes on in one of its own, in the precision decided for it."""
    last = {agent: home.attempts(run)[-1] for agent, run in home.under_way.items()}
    assert len({row["pid"] for row in last.values()}) == len(CONFIGURED)
    precisions = {
        agent: home.events(row["run_id"], row["number"], "precision_changed")[-1].state
        for agent, row in last.items()
    }
    assert (precisions["north"].effective, precisions["north"].reason) == ("bf16", "default")
    assert (precisions["south"].effective, precisions["south"].reason) == ("fp32", "operator")


def assert_only_new_records_are_read(home: Home) -> None:
    """A run of a configured agent records the line that was added to its folder, and no other."""
    new = {"id": "new", "group": "new", "observation": {"x": 0.5}, "next_observation": {"y": 0.25}}
    with (home.folder / "records" / "north" / "all.jsonl").open("a") as file:
        file.write(json.dumps(new) + "\n")
    done = home.daemon.cli("run", "north")
    assert done.returncode == 0, done.stderr
    buffers = home.read_files("agents/*/replay/*.jsonl")
    [added] = [text for name, text in buffers.items() if name not in home.buffers]
    assert len(added.splitlines()) == 1

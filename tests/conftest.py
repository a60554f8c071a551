"""What holds for every test: its environment, its marker, and skips that count as failures."""

import faulthandler
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from _pytest.reports import CollectReport, TestReport
from hypothesis import settings

from tests.preloaded import ForkedPopen

# In the reason of a skip that no installation could spare.
ALLOWED = ("CUDA", "Genesis' own records", "do not go together")
# More than pytest-timeout's own: it interrupts a test once, and not its teardown again.
MOST_TEARDOWN_SECONDS = 660


# Hundreds of processes import our code: each compiles it again unless one keeps the result.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Small models on shared cores lose more than they gain by a second thread.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# No deadline for an example: its time depends on what else the machine does.
settings.register_profile("suite", deadline=None)
settings.register_profile("quick", max_examples=20, deadline=None)
settings.load_profile("suite")  # or the one of --hypothesis-profile

TESTS = Path(__file__).parent
FOLDERS = (  # fast ones first
    *("architecture", "infrastructure", "benchmarks", "docs", "examples", "scripts"),
    *("genesis_fp16", "deploy", "agents", "e2e"),
)
WAITING, LONGEST = {"deploy", "e2e", "genesis_fp16"}, {"e2e", "ray"}
PROCESS_FOLDERS = {"command", "e2e", "probe"}
PROCESS_FIXTURES = {
    "_preloaded",
    "aftermath",
    "caching_sandbox",
    "fabric",  # lightning takes a second to import
    "forked",
    "machine",
    "object_server",
    "postgres_server",
    "ranks",
    "ray_cluster",
    "sandbox",
    "slurm_cluster",
    "standin_command",
}


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the program, workers and probes that this process starts: their imports take seconds."""
    monkeypatch.setattr(subprocess, "Popen", ForkedPopen)


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[object]:
    """A real Slurm of two nodes, up in a second; see `SlurmCluster`."""
    from tests.genesis_fp16.executors.slurm_cluster import running_cluster

    with running_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def object_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """A real S3 server; see `ObjectServer`."""
    pytest.importorskip("moto", reason="the extra 'dev' has the server of buckets of the tests")
    from tests.genesis_fp16.executors.object_server import ObjectServer

    with closing(ObjectServer(tmp_path_factory.mktemp("objects"))) as server:
        yield server


def pytest_configure(config: pytest.Config) -> None:
    """A shell starts what is in the background deaf to interrupts, and so would be all children."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    worker = getattr(config, "workerinput", None)
    if worker is not None and [Path(argument).absolute() for argument in config.args] == [TESTS]:
        number = int(worker["workerid"].removeprefix("gw"))
        config.args = _from_another_place(number / worker["workercount"])


def _from_another_place(share: float) -> list[str]:
    """All folders and files of tests, from another one on for each worker.

    In a new clone all tests are to be compiled, which takes 7 s: each worker would compile each of
    them if all went the same way.
    """
    places = sorted(
        str(path)
        for path in TESTS.glob("*/*")
        if path.name.startswith("test_") or (path.is_dir() and path.name[0] not in "._")
    )
    first = int(share * len(places))
    return places[first:] + places[:first]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what starts processes, and begin with fast folders; workers end with them."""
    for item in items:
        if _starts_processes(item):
            item.add_marker("process")
    if hasattr(config, "workerinput"):
        long = dict.fromkeys(item.path for item in items if item.get_closest_marker("process"))
        places = _places(sorted(long))
        items.sort(key=lambda item: (places.get(item.path, 1.0), item.path))
    else:
        items.sort(key=_place)


def _places(files: list[Path]) -> dict[Path, float]:
    """Order of files of which each is run by one of the workers, from 0 to 1.

    Files that mostly wait alternate with those that compute: all workers at files of one kind
    would leave cores idle, or crowd them. The longest come first, so that no worker ends alone.
    """
    waiting = [file for file in files if WAITING.intersection(_folders(file))]
    waiting.sort(key=lambda file: not LONGEST.intersection(_folders(file)))
    computing = [file for file in files if file not in waiting]
    return {
        file: number / len(kind)
        for kind in (waiting, computing)
        for number, file in enumerate(kind)
    }


def _place(item: pytest.Item) -> int:
    folder = _folders(item.path)[0]
    return FOLDERS.index(folder) if folder in FOLDERS else len(FOLDERS)


def _folders(file: Path) -> tuple[str, ...]:
    return file.relative_to(TESTS).parts if file.is_relative_to(TESTS) else ("",)


def _starts_processes(item: pytest.Item) -> bool:
    code = getattr(getattr(item, "function", None), "__code__", None)
    return bool(
        PROCESS_FOLDERS.intersection(item.path.parts)
        or PROCESS_FIXTURES.intersection(getattr(item, "fixturenames", ()))
        or (code is not None and "subprocess" in code.co_names)
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from walking again and again over what imports leave for good."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        gc.set_threshold(50_000, 20, 20)  # the default 700 takes a tenth of the whole time


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fail-on-skip",
        action="store_true",
        help=f"a skip fails, unless its reason names one of: {', '.join(ALLOWED)}",
    )


def _judge(report: CollectReport | TestReport, config: pytest.Config) -> None:
    if not (config.getoption("fail_on_skip") and report.skipped) or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if not any(allowed in reason for allowed in ALLOWED):
        report.outcome = "failed"
        report.longrepr = (
            f"{reason}: --fail-on-skip takes that for a failure; install what it lacks"
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """End this process, and print where it was, if a teardown hangs."""
    file = item.config.stash[fault_handler_stderr_fd_key]
    faulthandler.dump_traceback_later(MOST_TEARDOWN_SECONDS, exit=True, file=file)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, TestReport, TestReport]:
    report = yield
    _judge(report, item.config)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, CollectReport, CollectReport]:
    report = yield
    _judge(report, collector.config)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests have measured, and by which way each failure was reached.

    A log that keeps its end alone would not say where a test, or a teardown, has hung.
    """
    for report in (*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")):
        entries = getattr(getattr(report.longrepr, "reprtraceback", None), "reprentries", ())
        places = [entry.reprfileloc for entry in entries if getattr(entry, "reprfileloc", None)]
        way = " > ".join(f"{place.path}:{place.lineno}" for place in places)
        terminalreporter.write_line(f"failed in {report.when} of {report.nodeid}: {way}")
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties if report.when == "call" else ():
            if name == "measured":
                terminalreporter.write_line(f"measured: {value}")

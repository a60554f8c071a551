"""``python -m benchmarks.predictor``: predictor, client and daemon beside their goals."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import quantiles

from genesis_client import Agent

from benchmarks.client.installation import import_seconds, wheel_bytes
from benchmarks.measuring.table import format_table
from benchmarks.predictor.daemon import kill_and_count, measure_daemon_bytes
from benchmarks.predictor.served import QUESTION, Connection, Served, fit_model, serving

_COLUMNS = ("what", "goal", "result", "met")
_SWITCHES = 7  # five publications and two rollbacks
_OLD_SECONDS = 1.0  # after which no answer may come from the version before
_IMPORTS = 10

Row = dict[str, str]
Ask = Callable[[int], object]


def _row(what: str, goal: str, result: str, *, met: bool | None = None) -> Row:
    verdict = "" if met is None else "yes" if met else "NO"
    return dict(zip(_COLUMNS, (what, goal, result, verdict), strict=True))


def _seconds(ask: Ask, count: int) -> list[float]:
    """Ask *count* times, one after the other."""
    taken = []
    for number in range(count):
        began = time.perf_counter()
        ask(number)
        taken.append(time.perf_counter() - began)
    return taken


def _p50_p99(seconds: Sequence[float]) -> tuple[float, float]:
    percentiles = quantiles(seconds, n=100, method="inclusive")
    return 1e3 * percentiles[49], 1e3 * percentiles[98]


def measure_one_connection(served: Served, count: int) -> list[Row]:
    """Rows of one connection that asks again and again."""
    question = QUESTION["observation"], QUESTION["actions"]
    with Agent("a0", home=served.home, deadline=30.0) as agent:
        agent.rank(*question)
        before = served.cpu_seconds()
        seconds = _seconds(lambda _: agent.rank(*question), count)
        cpu = 1e3 * (served.cpu_seconds() - before) / count
        if problem := agent.status.problem:
            raise SystemExit(f"the predictor did not answer: {problem}")
    p50, p99 = _p50_p99(seconds)
    rate = count / sum(seconds)
    rows = [
        _row(
            "rank of 10 actions by the client: p50 / p99",
            "2 / 6 ms",
            f"{p50:.2f} / {p99:.2f} ms; {cpu:.2f} ms of CPU",
            met=p50 <= 2.0 and p99 <= 6.0,
        ),
        _row("the same: sustained", "600/s", f"{rate:.0f}/s", met=rate >= 600),
    ]
    client = served.connection()

    def decide(number: int) -> object:
        return client.ask("a0", "decisions", {**QUESTION, "id": f"one-{number}"})

    def report(number: int) -> object:
        return client.ask("a0", f"decisions/one-{number}/outcome", {"reward": 1.0})

    asked = {
        "predict of 10 actions": lambda _: client.ask("a0", "predict", QUESTION),
        "decision, durable": decide,
        "outcome, durable": report,
    }
    for what, ask in asked.items():
        p50, p99 = _p50_p99(_seconds(ask, count))
        rows.append(_row(f"{what}: p50 / p99", "", f"{p50:.2f} / {p99:.2f} ms"))
    return rows


def measure_durable(served: Served, connections: int, count: int) -> Row:
    """Row of outcomes that many connections report at once."""
    clients = [served.connection() for _ in range(connections)]
    for number, client in enumerate(clients):
        for begin in range(0, count, 500):
            ids = range(begin, min(count, begin + 500))
            choices = [{"id": f"m{number}-{n}", **QUESTION, "chosen": 0} for n in ids]
            client.ask("a1", "choices", {"choices": choices})

    def report(number: int, client: Connection) -> None:
        for n in range(count):
            client.ask("a1", f"decisions/m{number}-{n}/outcome", {"reward": 1.0})

    began, before = time.perf_counter(), served.cpu_seconds()
    _together([partial(report, number, client) for number, client in enumerate(clients)])
    rate = connections * count / (time.perf_counter() - began)
    cpu = 1e3 * (served.cpu_seconds() - before) / (connections * count)
    result = f"{rate:.0f}/s; {cpu:.2f} ms of CPU each"
    what = f"durable outcomes on {connections} connections"
    return _row(what, "2000/s", result, met=rate >= 2000)


def measure_switches(
    served: Served, models: Sequence[Path], *, connections: int, rate: float, seconds: float
) -> Row:
    """Row of an open loop over 8 agents, while models of one are exchanged all the time."""
    ended = 0.0
    answers: list[tuple[float, float, str]] = []  # asked at, seconds, version
    failed: list[str] = []

    def ask(number: int) -> None:
        client, due = served.connection(), time.monotonic() + number / rate
        while due < ended:
            time.sleep(max(0.0, due - time.monotonic()))
            asked = time.time()
            try:
                answer = client.ask(f"a{number % 8}", "rank", QUESTION)
            except (RuntimeError, OSError) as error:
                failed.append(str(error))
                client = served.connection()
            else:
                late = time.monotonic() - due  # an open loop counts the time in the queue
                answers.append((asked, late, str(answer["version"]) if number % 8 == 0 else ""))
            due += connections / rate

    switched: list[float] = []

    def publish() -> None:
        for number in range(_SWITCHES):
            time.sleep(seconds / (_SWITCHES + 1))
            _publish(models[(number + 1) % 2], served.home / "agents" / "a0")
            switched.append(time.time())

    with _training_beside():
        ended = time.monotonic() + seconds
        _together([*(partial(ask, number) for number in range(connections)), publish])
    stale = _stale([(asked, version) for asked, _, version in answers if version], switched)
    _, p99 = _p50_p99([late for _, late, _ in answers])
    return _row(
        f"{connections} connections, {rate:.0f}/s, 8 agents, {_SWITCHES} switches, a training",
        "p99 25 ms, none failed, none old",
        f"p99 {p99:.1f} ms, {len(failed)} failed, {stale} old",
        met=p99 <= 25.0 and not failed and not stale,
    )


@contextmanager
def _training_beside() -> Iterator[None]:
    command = [sys.executable, "-m", "benchmarks.predictor.training"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        if process.stdout is not None:
            process.stdout.readline()  # it trains
        yield
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _stale(answers: Sequence[tuple[float, str]], switched: Sequence[float]) -> int:
    """Answers whose version is not the one in use, asked `_OLD_SECONDS` after a switch."""
    ends = [*switched[1:], float("inf")]
    stale = 0
    for begin, end in zip(switched, ends, strict=True):
        versions = [version for asked, version in answers if begin + _OLD_SECONDS < asked < end]
        stale += sum(version != versions[-1] for version in versions)
    return stale


def measure_many(home: Path, model: Path, count: int) -> list[Row]:
    """Rows of the first answers of *count* agents with small models, and of the memory then."""
    for number in range(count):
        _publish(model, home / "agents" / f"small{number}")
    with serving(home) as served:
        client = served.connection()
        client.ask("small0", "rank", QUESTION)
        seconds = _seconds(lambda n: client.ask(f"small{n}", "rank", QUESTION), count)
        resident = served.resident_bytes() / 2**20
    _, p99 = _p50_p99(seconds)
    most = 1e3 * max(seconds)
    result = f"p99 {p99:.0f} ms, largest {most:.0f} ms"
    return [
        _row(f"cold models, first answer of {count}", "100 ms", result, met=p99 <= 100),
        _row("memory then, 200 loaded", "600 MiB", f"{resident:.0f} MiB", met=resident <= 600),
    ]


def measure_client(count: int) -> list[Row]:
    """Rows of the client alone: size, import, and calls while no daemon runs."""
    import_seconds()  # compiles
    imports = [import_seconds() for _ in range(_IMPORTS)]
    wall, cpu = (1e3 * sorted(each)[_IMPORTS // 2] for each in zip(*imports, strict=True))
    with tempfile.TemporaryDirectory() as folder:
        size = wheel_bytes(Path(folder)) / 1000
    question = QUESTION["observation"], QUESTION["actions"]
    with (
        tempfile.TemporaryDirectory() as folder,
        Agent("a0", home=folder, spool=folder, spool_bytes=1 << 30) as agent,
    ):

        def cycle(_: int) -> None:
            with agent.choose(*question) as decision:
                decision.report({"ok": "yes"}, reward=1.0)

        agent.rank(*question)
        stopped, _ = _p50_p99(_seconds(cycle, count))
    result = f"{wall:.0f} ms, {cpu:.0f} ms of CPU"
    return [
        _row("client: import, median", "30 ms", result, met=wall <= 30),
        _row("client: wheel", "40 KB", f"{size:.1f} KB", met=size <= 40),
        _row(
            "client, daemon stopped: a spooled decision",
            "1 ms",
            f"{stopped:.2f} ms",
            met=stopped <= 1,
        ),
    ]


def _publish(model: Path, agent_folder: Path) -> None:
    """Publish as the library does: the index comes last, by a rename."""
    published = agent_folder / "published"
    published.mkdir(parents=True, exist_ok=True)
    for path in sorted(model.iterdir(), key=lambda path: path.name == "model.json"):
        written = published / f".{path.name}.new"
        shutil.copyfile(path, written)
        written.rename(published / path.name)


def _together(calls: Sequence[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--rate", type=float, default=200.0, help="requests a second, in all")
    parser.add_argument("--seconds", type=float, default=20.0, help="of the open loop")
    parser.add_argument("--models", type=int, default=1000, help="small ones")
    parser.add_argument("--kills", type=int, default=50, help="of predictor, API and daemon")
    parser.add_argument("--agents", type=int, default=20, help="of the daemon whose memory counts")
    options = parser.parse_args(arguments)
    rows = []
    for row in _measured(options):
        rows.append(row)
        sys.stderr.write(f"{row['what']}: {row['result']}\n")  # a part is worth something, too
    print(format_table(rows, _COLUMNS))
    return 0


def _measured(options: argparse.Namespace) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        home, models = Path(folder, "home"), [Path(folder, "first"), Path(folder, "second")]
        for number, path in enumerate(models):
            fit_model(number, members=5, hidden=64).save(path)
        small = Path(folder, "small")
        fit_model(2, members=1, hidden=8).save(small)
        for number in range(8):
            _publish(models[0], home / "agents" / f"a{number}")
        with serving(home) as served:
            yield from measure_one_connection(served, options.calls)
            per_connection = max(2, 2 * options.calls // options.connections)
            yield measure_durable(served, options.connections, per_connection)
            yield measure_switches(
                served,
                models,
                connections=options.connections,
                rate=options.rate,
                seconds=options.seconds,
            )
        yield from measure_many(Path(folder, "many"), small, options.models)
        if options.kills:
            killed = kill_and_count(Path(folder, "killed"), options.kills)
            yield _row(
                f"{options.kills} kills of predictor, API and daemon: lost / doubled",
                "0 / 0",
                f"{killed.lost} / {killed.doubled} of {killed.acknowledged}",
                met=killed.lost == killed.doubled == 0,
            )
        if options.agents:
            size = measure_daemon_bytes(Path(folder, "daemon"), options.agents) / 2**20
            what = f"the daemon's own memory, {options.agents} agents, API and predictor"
            yield _row(what, "100 MiB", f"{size:.0f} MiB", met=size < 100)
    yield from measure_client(options.calls)


if __name__ == "__main__":
    raise SystemExit(main())

"""``python -m benchmarks.predictor``: times, rates, memory and switches of a real predictor."""

from __future__ import annotations

import argparse
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import quantiles

from benchmarks.measuring.table import format_table
from benchmarks.predictor.served import QUESTION, Connection, Served, fit_model, serving

_COLUMNS = ("what", "p50", "p99", "rate", "CPU of the predictor")
_SWITCHES = 7  # five publications and two rollbacks
_OLD_SECONDS = 1.0  # after which no answer may come from the version before

Row = dict[str, str]


def measure(served: Served, what: str, ask: Callable[[int], object], count: int) -> Row:
    """Ask *count* times one after the other; one row of the table."""
    seconds, before = [], served.cpu_seconds()
    for number in range(count):
        began = time.perf_counter()
        ask(number)
        seconds.append(time.perf_counter() - began)
    cpu = 1e3 * (served.cpu_seconds() - before) / count
    return _row(what, seconds, f"{count / sum(seconds):.0f}/s", f"{cpu:.2f} ms a call")


def _row(what: str, seconds: Sequence[float], rate: str, cpu: str = "") -> Row:
    percentiles = quantiles(seconds, n=100, method="inclusive")
    p50, p99 = (f"{1e3 * percentiles[at]:.2f} ms" for at in (49, 98))
    return dict(zip(_COLUMNS, (what, p50, p99, rate, cpu), strict=True))


def measure_one_connection(served: Served, count: int) -> list[Row]:
    """Rows of one connection that asks again and again."""
    client = served.connection()
    client.ask("a0", "rank", QUESTION)

    def decide(number: int) -> object:
        return client.ask("a0", "decisions", {**QUESTION, "id": f"one-{number}"})

    def report(number: int) -> object:
        return client.ask("a0", f"decisions/one-{number}/outcome", {"reward": 1.0})

    def ask(verb: str) -> object:
        return client.ask("a0", verb, QUESTION)

    return [
        measure(served, "rank of 10 actions", lambda _: ask("rank"), count),
        measure(served, "predict of 10 actions", lambda _: ask("predict"), count),
        measure(served, "decision, durable", decide, count),
        measure(served, "outcome, durable", report, count),
    ]


def measure_durable(served: Served, connections: int, count: int) -> Row:
    """Row of outcomes that many connections report at once."""
    clients = [served.connection() for _ in range(connections)]
    for number, client in enumerate(clients):
        choices = [{"id": f"m{number}-{n}", **QUESTION, "chosen": 0} for n in range(count)]
        client.ask("a1", "choices", {"choices": choices})
    seconds: list[float] = []

    def report(number: int, client: Connection) -> None:
        for n in range(count):
            began = time.perf_counter()
            client.ask("a1", f"decisions/m{number}-{n}/outcome", {"reward": 1.0})
            seconds.append(time.perf_counter() - began)

    began = time.perf_counter()
    _together([partial(report, number, client) for number, client in enumerate(clients)])
    rate = connections * count / (time.perf_counter() - began)
    return _row(f"outcomes on {connections} connections", seconds, f"{rate:.0f}/s")


def measure_switches(
    served: Served, models: Sequence[Path], *, connections: int, rate: float, seconds: float
) -> Row:
    """Row of an open loop over 8 agents, while models of one are exchanged all the time."""
    ended = time.monotonic() + seconds
    answers: list[tuple[float, float, str]] = []  # asked at, seconds, version

    def ask(number: int) -> None:
        client, due = served.connection(), time.monotonic() + number / rate
        while due < ended:
            time.sleep(max(0.0, due - time.monotonic()))
            asked = time.time()
            answer = client.ask(f"a{number % 8}", "rank", QUESTION)
            late = time.monotonic() - due  # an open loop counts the time in the queue
            if number % 8 == 0:
                answers.append((asked, late, str(answer["version"])))
            else:
                answers.append((asked, late, ""))
            due += connections / rate

    switched: list[float] = []

    def publish() -> None:
        for number in range(_SWITCHES):
            time.sleep(seconds / (_SWITCHES + 1))
            _publish(models[(number + 1) % 2], served.home / "agents" / "a0")
            switched.append(time.time())

    _together([*(partial(ask, number) for number in range(connections)), publish])
    stale = _stale([(asked, version) for asked, _, version in answers if version], switched)
    what = f"{rate:.0f}/s on {connections} connections, {_SWITCHES} switches"
    return _row(what, [late for _, late, _ in answers], f"{stale} by an old version")


def _stale(answers: Sequence[tuple[float, str]], switched: Sequence[float]) -> int:
    """Answers whose version is not the one in use, asked `_OLD_SECONDS` after a switch."""
    ends = [*switched[1:], float("inf")]
    stale = 0
    for begin, end in zip(switched, ends, strict=True):
        versions = [version for asked, version in answers if begin + _OLD_SECONDS < asked < end]
        stale += sum(version != versions[-1] for version in versions)
    return stale


def measure_many(served: Served, model: Path, count: int) -> list[Row]:
    """Rows of the first answers of *count* agents with small models, and of the memory then."""
    for number in range(count):
        _publish(model, served.home / "agents" / f"small{number}")
    client = served.connection()
    row = measure(
        served,
        f"first answers of {count} agents",
        lambda number: client.ask(f"small{number}", "rank", QUESTION),
        count,
    )
    memory = f"{served.resident_bytes() / 2**20:.0f} MiB"
    return [row, {**dict.fromkeys(_COLUMNS, ""), "what": "memory then", "p50": memory}]


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
    parser.add_argument("--agents", type=int, default=1000, help="with small models")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        home, models = Path(folder, "home"), [Path(folder, "first"), Path(folder, "second")]
        for number, path in enumerate(models):
            fit_model(number, members=5, hidden=64).save(path)
        small = Path(folder, "small")
        fit_model(2, members=1, hidden=8).save(small)
        for number in range(8):
            _publish(models[0], home / "agents" / f"a{number}")
        with serving(home) as served:
            rows = measure_one_connection(served, options.calls)
            per_connection = max(2, options.calls // options.connections)
            rows.append(measure_durable(served, options.connections, per_connection))
            rows.append(
                measure_switches(
                    served,
                    models,
                    connections=options.connections,
                    rate=options.rate,
                    seconds=options.seconds,
                )
            )
            rows += measure_many(served, small, options.agents)
    print(format_table(rows, _COLUMNS))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

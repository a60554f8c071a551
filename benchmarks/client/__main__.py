"""``python -m benchmarks.client``: size, import and calls of the client, with and without a daemon.

A cycle is a decision and the report of its outcome. Without a daemon all of it goes to the spool.
With ``--home`` the predictor of a running daemon is asked, too, about actions without fields.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import quantiles

from genesis_client import Agent

from benchmarks.client.installation import import_seconds, wheel_bytes
from benchmarks.measuring.table import format_table

_COLUMNS = ("what", "p50", "p99", "largest")
_ACTIONS = [{"reply": f"answer {number}", "effort": number / 10} for number in range(10)]
_OBSERVATION = {"topic": "login", "load": 0.5, "text": "I cannot sign in since yesterday " * 4}


def measure(what: str, call: Callable[[], object], count: int) -> dict[str, str]:
    """Call *count* times; one row of the table, in milliseconds."""
    seconds = []
    for _ in range(count):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return _row(what, seconds)


def _row(what: str, seconds: Sequence[float]) -> dict[str, str]:
    percentiles = quantiles(seconds, n=100, method="inclusive")
    figures = (percentiles[49], percentiles[98], max(seconds))
    texts = (f"{1e3 * figure:.3f} ms" for figure in figures)
    return {"what": what, **dict(zip(_COLUMNS[1:], texts, strict=True))}


def measure_installation(count: int) -> list[dict[str, str]]:
    """Rows of size and import."""
    import_seconds()  # compiles
    wall, cpu = zip(*(import_seconds() for _ in range(count)), strict=True)
    with tempfile.TemporaryDirectory() as folder:
        size = f"{wheel_bytes(Path(folder)) / 1000:.1f} KB"
    return [
        {"what": "wheel", "p50": size, "p99": "", "largest": ""},
        _row("import", wall),
        _row("import, CPU time", cpu),
    ]


def measure_stopped(folder: Path, count: int) -> list[dict[str, str]]:
    """Rows of calls while no daemon runs."""
    with Agent("benchmark", home=folder, spool=folder, spool_bytes=1 << 30) as agent:
        return [
            measure("stopped: first rank", lambda: agent.rank(_OBSERVATION, _ACTIONS), 2),
            measure("stopped: rank", lambda: agent.rank(_OBSERVATION, _ACTIONS), count),
            measure("stopped: cycle, spooled", lambda: _cycle(agent, _ACTIONS), count),
            measure("stopped: record, spooled", lambda: _record(agent), count),
        ]


def measure_served(home: Path, name: str, spool: Path, count: int) -> list[dict[str, str]]:
    """Rows of calls that a predictor answers."""
    actions: list[dict[str, object]] = [{} for _ in _ACTIONS]
    with Agent(name, home=home, spool=spool, deadline=5.0) as agent:
        rows = [
            measure("served: rank", lambda: agent.rank({}, actions), count),
            measure("served: cycle", lambda: _cycle(agent, actions), count),
        ]
        if problem := agent.status.problem:
            raise SystemExit(f"the predictor of {home} did not answer: {problem}")
        return rows


def _cycle(agent: Agent, actions: Sequence[dict[str, object]]) -> None:
    with agent.choose({}, actions) as decision:
        decision.report({"solved": True}, reward=1.0)


def _record(agent: Agent) -> None:
    agent.record(group="ticket", observation=_OBSERVATION, action=_ACTIONS[0], reward=1.0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, help="GENESIS_HOME of a running daemon")
    parser.add_argument("--agent", default="support", help="its agent")
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--imports", type=int, default=20)
    options = parser.parse_args(arguments)
    rows = measure_installation(options.imports)
    with tempfile.TemporaryDirectory() as folder:
        rows += measure_stopped(Path(folder), options.calls)
        if options.home is not None:
            spool = Path(folder, "served")
            rows += measure_served(options.home, options.agent, spool, options.calls)
    print(format_table(rows, _COLUMNS))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

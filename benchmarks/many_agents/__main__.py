"""``python -m benchmarks.many_agents [loop|storm]``: what the daemon costs with 1,000 agents.

``loop`` takes a minute; ``storm`` starts a worker for each of 1,000 runs, which takes most of an
hour on two cores, or a quarter of one with ``--forked all``.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path

import structlog

from benchmarks.many_agents import loop
from benchmarks.many_agents.storm import Plan, measure_storm


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_agents", description=__doc__)
    parser.add_argument("what", nargs="?", choices=["loop", "storm"], default="loop")
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--idle-seconds", type=float, default=30.0)
    parser.add_argument("--slots", type=int, default=4, help="workers at once, in the storm")
    parser.add_argument(
        "--flip-seconds", type=float, default=10.0, help="between two changes of the flag"
    )
    parser.add_argument("--due", type=int, help="agents that are due; default: all")
    parser.add_argument("--finish", type=int, help="runs to wait for; default: all that are due")
    parser.add_argument(
        "--scrape-seconds", type=float, default=15.0, help="between two scrapes, as Prometheus does"
    )
    parser.add_argument(
        "--forked",
        choices=["nothing", "probes", "all"],
        default="nothing",
        help="what is forked from a process that has imported torch, instead of started: the "
        "probes, or also the daemon of the storm and its workers, which delays its rounds",
    )
    options = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    if options.what == "loop":
        print(loop.measure(options.agents, options.idle_seconds))
        return
    with tempfile.TemporaryDirectory(prefix="genesis-storm-") as folder:
        due = options.due or options.agents
        plan = Plan(
            agents=options.agents,
            due=due,
            finish=options.finish or due,
            slots=options.slots,
            idle_seconds=options.idle_seconds,
            flip_seconds=options.flip_seconds,
            scrape_seconds=options.scrape_seconds,
            forked=options.forked,
        )
        print(measure_storm(Path(folder), plan))


if __name__ == "__main__":
    main()

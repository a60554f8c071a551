"""``python -m benchmarks.takeover``: seconds until a standby daemon has taken over.

Two daemons, each with a host name and process ids of its own (Linux namespaces, so root is
needed), share a PostgreSQL server and a GENESIS_HOME. In each round a run trains on the one that
leads, which is then lost; the other goes on with the run, and a new machine becomes the standby.
Each step of the run is written down, so that two attempts at a time would be seen.
"""

from __future__ import annotations

import argparse
import tempfile
from itertools import cycle, islice
from pathlib import Path
from statistics import median

from benchmarks.measuring.table import format_table
from benchmarks.takeover.postgres import postgres_server
from benchmarks.takeover.trial import LOSSES, Site, Takeover, site
from benchmarks.takeover.waiting import wait_for


def measure(rounds: int, folder: Path) -> list[Takeover]:
    """Lose the leader *rounds* times, by each kind of loss in turn."""
    with postgres_server() as port, site(folder, port) as machines:
        return _rounds(machines, rounds)


def _rounds(machines: Site, rounds: int) -> list[Takeover]:
    found: list[Takeover] = []
    leader, relay = machines.machine()
    wait_for(leader.leads, "the first daemon to lead")
    for loss in islice(cycle(LOSSES), rounds):
        standby, its_relay = machines.machine()
        wait_for(standby.waits, "the standby to wait")
        found.append(machines.take_over(leader, relay, standby, loss))
        leader.destroy()
        leader, relay = standby, its_relay
    return found


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(arguments.rounds, Path(folder))
    rows = []
    for loss, text in LOSSES.items():
        of_kind = [each for each in found if each.loss == loss]
        if of_kind:
            rows.append(
                {
                    "the leader": text,
                    "takeovers": str(len(of_kind)),
                    "leads after": _spread([each.leads for each in of_kind]),
                    "last step before": _spread([each.last_step for each in of_kind]),
                    "next step after": _spread([each.next_step for each in of_kind]),
                    "least gap": f"{min(e.next_step - e.last_step for e in of_kind):.1f}",
                }
            )
    print(format_table(rows, [*rows[0]]))


def _spread(values: list[float]) -> str:
    return f"{median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


if __name__ == "__main__":
    main()

"""Agents whose workers write what no daemon should wait for, until their daemon is gone.

Installed by a fixture. None of them obeys a command to stop.
"""

import json
import os
import sys
import time
from pathlib import Path

from infrastructure.agent_contract import CONTRACT_VERSION, Schedule

BYTES_PER_SECOND = 8 << 20  # more than a daemon reads
MOST_SECONDS = 300.0


def line(kind: str, **fields: object) -> bytes:
    return json.dumps({"time": time.time(), "kind": kind, **fields}).encode() + b"\n"


class Hostile:
    """An agent that writes into its event file as long as the daemon lives."""

    contract_version = CONTRACT_VERSION

    def schedule(self):
        return Schedule.parse("every 1s")

    def settings_model(self):
        return None

    def collect(self, context):
        path, daemon = Path(sys.argv[-1]).with_name("events.ndjson"), os.getppid()
        give_up_at = time.monotonic() + MOST_SECONDS
        while os.getppid() == daemon and time.monotonic() < give_up_at:
            self.write(path)
        yield from ()

    def build_job(self, context, transitions):
        raise NotImplementedError

    def publish(self, context, model, report):
        raise NotImplementedError


class Flooder(Hostile):
    """Small events and lines that are none, faster than they can be read."""

    name = "flooder"
    stats = line(
        "step_stats", step=1, applied=1, samples=8, seconds=1e-5, loss_scale=1.0, precision="fp32"
    )
    written = (stats * 90 + b"no event\n" * 90 + line("notice", event="odd")) * 60

    def write(self, path):
        with path.open("ab") as file:
            file.write(self.written)
        time.sleep(len(self.written) / BYTES_PER_SECOND)


class Claimer(Hostile):
    """Few events, each with far too much in it."""

    name = "claimer"

    def write(self, path):
        number = time.monotonic_ns()
        metrics = {f"metric_{number}_{n}": 0.5 for n in range(12_000)}
        with path.open("ab") as file:
            file.write(
                line(
                    "step_stats",
                    step=30_000_000,
                    applied=30_000_000,
                    seconds=1.0,
                    loss_scale=1.0,
                    precision="fp32",
                )
            )
            file.write(line("evaluated", epoch=1, metrics=metrics, primary=f"metric_{number}_0"))
            file.write(line("notice", event="odd", fields=dict.fromkeys(metrics, "much")))
            file.write(b"no event\n")
        time.sleep(0.1)


class Linker(Hostile):
    """Replaces its event file by a link to one without an end."""

    name = "linker"

    def write(self, path):
        if not path.is_symlink():
            path.unlink()
            path.symlink_to("/dev/zero")
        time.sleep(0.1)

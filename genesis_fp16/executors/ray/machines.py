"""The machines of a Ray cluster, and how their resources are written."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from genesis_fp16.executors.ray.connection import Connection

KINDS = ("CPU", "GPU", "memory")  # Ray's names of resources; memory in bytes


def machines_of(ray: Connection) -> list[Mapping[str, float]]:
    """Resources of each machine that is alive, by `KINDS`.

    Raises:
        EngineError: The cluster did not answer, or with an error.
    """
    answer = ray.ask("GET", "/api/v0/nodes")
    try:
        nodes = json.loads(answer.text)["data"]["result"]["result"]
        return [node["resources_total"] for node in nodes if node["state"] == "ALIVE"]
    except (ValueError, LookupError, TypeError) as error:
        raise ray.unreadable("its machines") from error


def largest_of(machines: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The most that one of *machines* has of each of `KINDS`."""
    return {kind: max((machine.get(kind, 0) for machine in machines), default=0) for kind in KINDS}


def is_enough(machine: Mapping[str, float], wanted: Mapping[str, float]) -> bool:
    """Whether an idle *machine* could run what asks for *wanted*."""
    return all(machine.get(kind, 0) >= amount for kind, amount in wanted.items())


def written(resources: Mapping[str, float]) -> str:
    """For example ``4 CPUs, 1 GPU, 2048 MiB of memory``."""
    cpus, gpus, memory = (resources.get(kind, 0) for kind in KINDS)
    parts = [f"{cpus:g} CPU" + "s" * (cpus != 1)]
    if gpus:
        parts.append(f"{gpus:g} GPU" + "s" * (gpus != 1))
    if memory:
        parts.append(f"{memory / 2**20:.0f} MiB of memory")
    return ", ".join(parts)

"""Processes that the kernel has killed for lack of memory: a SIGKILL alone does not say so."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryKills:
    """How many there were: in this process's cgroup, which limits it, and on this machine."""

    of_cgroup: int
    of_machine: int

    @classmethod
    def now(cls, proc: Path = _PROC, cgroups: Path = _CGROUPS) -> MemoryKills:
        """Read the kernel's counters; one that it does not show counts as 0."""
        own = 0
        for line in _read(proc / "self/cgroup").splitlines():
            _, controllers, place = line.split(":", 2)
            if controllers == "":
                own += _count(cgroups / place.lstrip("/") / "memory.events")
            elif "memory" in controllers.split(","):
                own += _count(cgroups / "memory" / place.lstrip("/") / "memory.oom_control")
        return cls(of_cgroup=own, of_machine=_count(proc / "vmstat"))

    def explain(self, later: MemoryKills, remedy: str) -> str:
        """What a SIGKILL since then means; empty if the kernel killed nothing meanwhile."""
        if later.of_cgroup > self.of_cgroup:
            return f"OOMKilled: it took more memory than its limit; {remedy}"
        if later.of_machine > self.of_machine:
            return f"OOMKilled, most likely: the machine ran out of memory; {remedy}"
        return ""


def _count(path: Path) -> int:
    found = re.search(r"^oom_kill (\d+)$", _read(path), re.MULTILINE)
    return int(found[1]) if found else 0


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""

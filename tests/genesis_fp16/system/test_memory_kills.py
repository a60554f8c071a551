"""What the kernel's counters say of a process that was killed."""

from pathlib import Path

import pytest

from genesis_fp16.system.memory_kills import MemoryKills

V2, V1 = "0::/unit.slice/genesis.service\n", "5:devices:/\n4:cpu,memory:/job_7\n0::/\n"


@pytest.mark.parametrize(
    ("cgroup", "counter"),
    [
        (V2, "unit.slice/genesis.service/memory.events"),
        (V1, "memory/job_7/memory.oom_control"),
    ],
)
def test_a_kill_in_its_cgroup_or_on_its_machine_is_told(
    tmp_path: Path, cgroup: str, counter: str
) -> None:
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroups"
    (proc / "self").mkdir(parents=True)
    (proc / "self/cgroup").write_text(cgroup)
    (cgroups / counter).parent.mkdir(parents=True)

    def counted(own: int, machine: int) -> MemoryKills:
        (cgroups / counter).write_text(f"low 0\noom 9\noom_kill {own}\n")
        (proc / "vmstat").write_text(f"pgfault 7\noom_kill {machine}\n")
        return MemoryKills.now(proc, cgroups)

    before = counted(1, 4)
    assert before.explain(counted(1, 4), "do this") == ""
    assert before.explain(counted(2, 5), "do this") == (
        "OOMKilled: it took more memory than its limit; do this"
    )
    assert "the machine ran out of memory; do this" in before.explain(counted(1, 5), "do this")


def test_a_kernel_without_counters_says_nothing(tmp_path: Path) -> None:
    nothing = MemoryKills.now(tmp_path, tmp_path)
    assert nothing == MemoryKills(of_cgroup=0, of_machine=0)
    assert MemoryKills.now().of_machine >= 0  # of this machine

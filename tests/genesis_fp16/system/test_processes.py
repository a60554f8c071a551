"""Process trees end as a whole, and a subreaper keeps its orphans."""

import subprocess
import sys

import pytest

from genesis_fp16.system.processes import kill, living_descendants
from tests.patience import gone, wait_until

SLEEP = "import time; time.sleep(600)"
TREE = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {SLEEP!r}], start_new_session=True)
print(flush=True)
time.sleep(600)
"""
ORPHANED = f"""
import subprocess, sys
from genesis_fp16.system.processes import become_subreaper, kill_descendants, living_descendants
become_subreaper()
child = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}])"
subprocess.run([sys.executable, "-c", child])
print(len(living_descendants()))
kill_descendants()
print(len(living_descendants()))
"""
PARENT = """
import os, subprocess, sys
child = "import os, sys, time; from genesis_fp16.system.processes import die_with_parent; "
child += "die_with_parent(int(sys.argv[1])); print(os.getpid(), flush=True); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", child, str(os.getpid())])
sys.stdin.read()
"""

pytestmark = pytest.mark.process


def test_a_tree_is_found_and_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", TREE], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        descendants = living_descendants(parent.pid)
        assert len(descendants) == 1
        parent.kill()
        kill(descendants)
    wait_until(lambda: all(gone(descendant.pid) for descendant in descendants), "the end of all")
    assert living_descendants(parent.pid) == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has subreapers")
def test_a_subreaper_keeps_and_kills_orphans() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ORPHANED], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1", "0"], done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a parent-death signal")
def test_a_child_dies_with_its_parent() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.communicate(timeout=300)
    wait_until(lambda: gone(child), "the end of the child")

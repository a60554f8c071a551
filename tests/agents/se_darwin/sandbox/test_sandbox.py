from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from agents.se_darwin.sandbox import Limits, Sandbox, TestCase
from agents.se_darwin.sandbox.server_process import TimeUpError

TESTS = [TestCase.returning((number,), number + 1) for number in range(3)]
ADD_ONE = "def solve(x):\n    return x + 1\n"
HANGS = "def solve(x):\n    while x:\n        pass\n    return x + 1\n"


def passed(sandbox: Sandbox, source: str, tests: list[TestCase] = TESTS) -> list[bool]:
    [execution] = sandbox.run([source], tests, function="solve")
    return [test.passes(output) for test, output in zip(tests, execution.outputs, strict=True)]


def test_a_right_program_passes_and_a_wrong_one_fails(sandbox: Sandbox) -> None:
    assert passed(sandbox, ADD_ONE) == [True] * 3
    assert passed(sandbox, "def solve(x):\n    return 2 * x\n") == [False, True, False]


def test_what_finished_before_a_hang_counts(sandbox: Sandbox) -> None:
    [execution] = sandbox.run([HANGS], TESTS, function="solve")
    assert execution.end == "timeout"
    assert [output is not None for output in execution.outputs] == [True, False, False]


def test_what_only_sleeps_is_killed_at_the_deadline(sandbox: Sandbox) -> None:
    source = "import time\ndef solve(x):\n    time.sleep(3600)\n"
    limits = Limits(wall_seconds=0.2)
    [execution] = sandbox.run([source], TESTS, function="solve", limits=limits)
    assert execution.end == "timeout"


def test_programs_are_cut_off_together_when_the_time_is_up(sandbox: Sandbox) -> None:
    source = "import time\ndef solve(x):\n    time.sleep(3600)\n"
    limits = Limits(wall_seconds=30.0)
    began, restarts = time.monotonic(), sandbox.restarts
    with sandbox.until(began + 3600.0):
        with pytest.raises(TimeUpError), sandbox.until(began + 0.5):
            sandbox.screen([source] * 9, TESTS, function="solve", limits=limits)
        assert time.monotonic() - began < 20.0
        assert passed(sandbox, ADD_ONE) == [True] * 3
    assert sandbox.restarts == restarts


def test_programs_do_not_see_each_other(sandbox: Sandbox) -> None:
    source = (
        "import math\n"
        "def solve(x):\n"
        "    math.calls = getattr(math, 'calls', 0) + 1\n"
        "    return math.calls\n"
    )
    for execution in sandbox.run([source] * 2, TESTS, function="solve"):
        assert [output.text for output in execution.outputs if output] == ["1", "2", "3"]


def test_programs_that_are_screened_have_results_of_their_own(sandbox: Sandbox) -> None:
    ends = "import os\ndef solve(x):\n    os._exit(0)\n"
    unfinished = "def solve(x)\n"
    sources = [ADD_ONE, HANGS, ends, unfinished, "def solve(x):\n    return 1\n", ADD_ONE] * 6
    limits = Limits(cpu_seconds=0.05)
    executions = sandbox.screen(sources, TESTS, function="solve", limits=limits)
    passed = [
        [test.passes(output) for test, output in zip(TESTS, each.outputs, strict=True)]
        for each in executions
    ]
    assert passed == [[True] * 3, [True, False, False], *[[False] * 3] * 2, *passed[4:6]] * 6
    assert passed[4:6] == [[True, False, False], [True] * 3]
    assert [each.end for each in executions[:6]] == ["exit", "timeout", *["exit"] * 4]
    assert all(0.0 <= each.cpu_seconds < 0.2 for each in executions)


def test_programs_that_are_screened_share_modules_but_not_imports_and_chance(
    sandbox: Sandbox,
) -> None:
    draws = "import random, sys\nsys.modules.pop('math', None)\n"
    draws += "def solve(x):\n    return random.random(), 'math' in sys.modules\n"
    [first, *others] = sandbox.screen(["import math\n" + draws] * 4, TESTS, function="solve")
    assert all(each.outputs == first.outputs for each in others)


@pytest.mark.parametrize("inside", [False, True], ids=["module", "call"])
def test_programs_that_are_screened_have_memory_of_their_own(
    sandbox: Sandbox, inside: bool
) -> None:
    """Each takes 40 MB and forms a cycle; eight of them exceed the limit of one."""
    table = "TABLE = [0.0] * 5_000_000"
    source = f"{'' if inside else table}\ndef solve(x):\n    {table if inside else ''}\n"
    source += "    kept = [TABLE]\n    kept.append(kept)\n    return x + 1\n"
    limits = Limits(cpu_seconds=5.0)
    for execution in sandbox.screen([source] * 20, TESTS, function="solve", limits=limits):
        assert all(test.passes(out) for test, out in zip(TESTS, execution.outputs, strict=True))


def test_an_expected_exception_passes_and_another_does_not(sandbox: Sandbox) -> None:
    source = "def solve(x):\n    return [][x]\n"
    for name, expected in (("IndexError", True), ("KeyError", False)):
        case = TestCase(arguments=(1,), kind="raise", expected=name)
        assert passed(sandbox, source, [case]) == [expected]


def test_arguments_after_the_call_are_compared_where_asked(sandbox: Sandbox) -> None:
    source = "def solve(items):\n    items.append(1)\n"
    for after, expected in (("([0, 1],)", True), ("([0],)", False), (None, True)):
        case = TestCase(arguments=([0],), expected="None", expected_arguments=after)
        assert passed(sandbox, source, [case]) == [expected]


def test_a_program_sees_the_names_of_the_module_it_belongs_to(sandbox: Sandbox) -> None:
    source = "def solve(x):\n    return _siftdown.__name__\n"
    case = TestCase.returning((0,), "_siftdown")
    [execution] = sandbox.run([source], [case], function="solve", module="heapq")
    assert case.passes(execution.outputs[0])


@pytest.mark.process
@pytest.mark.parametrize(
    "work",
    [
        "__import__('collections').Counter('aab').most_common(1)",
        "__import__('argparse').ArgumentParser(prog='p').parse_args([])",
        "__import__('uuid').uuid5(__import__('uuid').NAMESPACE_DNS, 'a')",
        "'a'.encode('punycode')",
        "__import__('codecs').encode('a', 'rot13')",
    ],
)
def test_what_the_library_imports_when_first_needed_is_there(work: str) -> None:
    source = f"def solve(x):\n    {work}\n    return x\n"
    with Sandbox(modules=["argparse", "codecs", "collections", "uuid"]) as sandbox:
        assert passed(sandbox, source, [TestCase.returning((0,), 0)]) == [True]


def test_coverage_names_the_lines_run(sandbox: Sandbox) -> None:
    source = "def solve(x):\n    if x:\n        return x + 1\n    return 1\n"
    [execution] = sandbox.run([source], TESTS, function="solve", coverage=True)
    assert [output.lines for output in execution.outputs if output] == [{2, 4}, {2, 3}, {2, 3}]


def test_coverage_names_the_lines_that_an_exception_leaves(sandbox: Sandbox) -> None:
    source = "def part(x):\n    return 1 // x\ndef solve(x):\n    y = x\n    return part(y)\n"
    [execution] = sandbox.run([source], TESTS, function="solve", coverage=True)
    assert [output.lines for output in execution.outputs if output] == [
        {4, 5, 2, -2, -5},
        {4, 5, 2},
        {4, 5, 2},
    ]


def test_a_program_that_does_not_load_passes_nothing(sandbox: Sandbox) -> None:
    for source in ("def solve(x:", "1 / 0", "x = 1", "solve = 3"):
        assert passed(sandbox, source) == [False] * 3


def test_a_lost_server_costs_only_the_candidate_that_lost_it() -> None:
    with Sandbox(limits=Limits(wall_seconds=5.0)) as sandbox:
        group = sandbox.server_pid

        def kill() -> None:
            time.sleep(0.3)
            os.killpg(group, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        slow = "import time\ndef solve(x):\n    time.sleep(0.3)\n    return x + 1\n"
        executions = sandbox.run([slow, ADD_ONE], TESTS, function="solve")
        killer.join(timeout=60)
        assert sandbox.restarts == 1
        assert all(case.passes(out) for case, out in zip(TESTS, executions[1].outputs, strict=True))
        assert passed(sandbox, ADD_ONE) == [True] * 3


def test_a_candidate_that_waits_ends_with_the_process_that_asked_for_it(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom agents.se_darwin.sandbox import Limits, Sandbox, TestCase\n"
        "waits = 'import time\\ndef solve(x):\\n    time.sleep(3600)'\n"
        "sandbox = Sandbox(limits=Limits(wall_seconds=3600.0))\n"
        "print('open', flush=True)\n"
        "sandbox.run([waits], [TestCase.returning((1,), 1)], function='solve')\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as asking:
        try:
            assert asking.stdout is not None
            assert asking.stdout.readline() == b"open\n"
            ends = time.monotonic() + 120.0
            children: list[psutil.Process] = []
            while len(children) < 3:  # the server, the first of its namespace, the candidate
                assert time.monotonic() < ends
                time.sleep(0.01)
                children = psutil.Process(asking.pid).children(recursive=True)
        finally:
            asking.kill()
    assert psutil.wait_procs(children, timeout=60)[1] == []


def test_closing_ends_the_server_and_removes_its_folder(tmp_path: Path) -> None:
    sandbox = Sandbox()
    pid, folder = sandbox.server_pid, sandbox.folder
    assert folder.exists()
    sandbox.close()
    sandbox.close()
    assert not folder.exists()
    while is_alive(pid):  # until the adoptive parent has reaped the killed processes
        time.sleep(0.01)


def is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_landlock_holds_where_no_other_layer_would(sandbox: Sandbox) -> None:
    """`execv` needs no descriptor, no new process and no write access."""
    if not sandbox.layers["landlock"].startswith("on"):
        pytest.skip("this kernel has no Landlock")
    source = (
        "import os\n"
        "def solve(x):\n"
        "    try:\n"
        "        os.execv('/bin/true', ['true'])\n"
        "    except PermissionError:\n"
        "        return x + 1\n"
    )
    assert passed(sandbox, source) == [True] * 3


def test_limits_must_be_above_zero() -> None:
    with pytest.raises(ValueError, match="above zero"):
        Limits(cpu_seconds=0)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, which process limits do not bind")
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare")
def test_a_host_that_cannot_isolate_is_refused_with_a_remedy(tmp_path: Path) -> None:
    """Root in a user namespace that maps only root cannot become nobody, so it can fork."""
    script = "from agents.se_darwin.sandbox import Sandbox; Sandbox()"
    run = subprocess.run(
        ["unshare", "--user", "--map-root-user", sys.executable, "-c", script],
        env={"PYTHONPATH": str(Path(__file__).parents[4]), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare:" in run.stderr:
        pytest.skip("user namespaces are forbidden here")
    assert "SandboxUnavailableError: this host cannot isolate" in run.stderr
    assert "it can fork" in run.stderr
    assert "Run on Linux with seccomp filters" in run.stderr
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_texts_hash_alike_in_every_sandbox(sandbox: Sandbox) -> None:
    """The order of a set must not vary between sandboxes."""
    ask = [sys.executable, "-c", "print(hash('x'))"]
    printed = subprocess.check_output(ask, env={"PYTHONHASHSEED": "0"}, text=True)
    case = TestCase.returning(("x",), int(printed))
    assert passed(sandbox, "def solve(x):\n    return hash(x)\n", [case]) == [True]


@pytest.mark.parametrize(
    ("body", "kind", "text", "arguments"),
    [
        ("return len", "strange", "cannot compare a builtin_function", "([1],)"),
        ("raise KeyboardInterrupt", "raise", "KeyboardInterrupt", "([1],)"),
        ("x.append(2)", "value", "None", "([1, 2],)"),
        ("x.append(len)", "value", "None", "?"),
        ("return type(annotated.__annotations__['x']).__name__", "value", "'type'", ""),
    ],
)
def test_the_result_of_a_call(
    sandbox: Sandbox, body: str, kind: str, text: str, arguments: str
) -> None:
    source = f"def annotated(x: int): pass\ndef solve(x):\n    {body}"
    cases = [TestCase.returning(([1],), 0)]
    [execution] = sandbox.run([source], cases, function="solve")
    [output] = execution.outputs
    assert output is not None
    assert (output.kind, output.text[: len(text)]) == (kind, text)
    assert output.arguments.startswith(arguments)

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from agents.se_darwin.sandbox import Sandbox
from agents.se_darwin.search.evolution import Evolution
from agents.se_darwin.search.policy import Policy
from agents.se_darwin.solution.request import EvolutionRequest

CODE = "def solve(x):\n    return x"


def test_a_slow_program_gets_the_time_it_needs(sandbox: Sandbox) -> None:
    code = "def solve(x):\n    return sum(range(x))"
    limits = []
    for size in (1, 4_000_000):
        request = EvolutionRequest.model_validate(
            {"code": code, "function": "solve", "tests": [((size,), 0)]}
        )
        task = request.task(sandbox, 5.0)
        assert task.limits is not None
        limits.append(task.limits.cpu_seconds)
    assert 0.05 <= limits[0] < limits[1] <= 5.0


def test_the_search_begins_with_the_last_run_of_its_preparation(sandbox: Sandbox) -> None:
    given = {"code": CODE, "function": "solve", "tests": [((1,), 2)]}
    task = EvolutionRequest.model_validate(given).task(sandbox, 5.0)
    evolution = Evolution(task, sandbox, Random(0), Policy())
    assert task.given is not None
    assert evolution.archive.best is task.given
    [output] = task.given.execution.outputs
    assert output is not None
    assert output.lines, "the lines that the test runs are known"


HANGS = "def solve(x):\n    while True:\n        pass"
FILLS = "def solve(x):\n    found = [x]\n    while x:\n        found += found\n    return x"
SLEEPS = "import time\ndef solve(x):\n    time.sleep(0.15)\n    return x"
SLOW_TESTS = """
import time
from program import solve
def test_a():
    time.sleep(0.15)
    assert solve(1) == 2
"""


@pytest.mark.parametrize(
    ("code", "tests", "least_wall", "most_cpu"),
    [
        (CODE, "", 1.0, 0.5),
        (SLEEPS, "", 1.5, 0.5),
        (HANGS, "", 0.2, 0.5),  # if most candidates hang, each costs little
        (FILLS, "", 0.2, 0.5),
        (HANGS, SLOW_TESTS, 1.5, 0.5),  # but a repair needs the time that its tests take
    ],
)
def test_a_candidate_gets_a_multiple_of_the_time_that_is_needed(
    sandbox: Sandbox, code: str, tests: str, least_wall: float, most_cpu: float
) -> None:
    given = {"test_code": tests} if tests else {"tests": [((1,), 2)]}
    request = EvolutionRequest.model_validate({"code": code, "function": "solve"} | given)
    task = request.task(sandbox, 1.0)
    assert task.limits is not None
    assert least_wall <= task.limits.wall_seconds <= 2.0
    assert task.limits.cpu_seconds <= most_cpu


CLASS = """
import functools
class Box:
    def __init__(self, x):
        self.x = x
    def __next__(self):
        return self.x
    @functools.cached_property
    def twice(self):
        return self.x
"""


@pytest.mark.parametrize(
    ("code", "function", "test"),
    [
        (
            f"from functools import cache\n@cache\n{CODE}",
            "solve",
            "solve.cache_clear(); assert solve(1) == 2",
        ),
        ("def solve(x):\n    return lambda: x", "solve", "assert solve(1)() == 2"),
        ("def solve(x):\n    x.append(len)", "solve", "x = []; assert solve(x) == 1"),
        ("def solve(f, x):\n    return f(x)", "solve", "assert solve(lambda x: x, 1) == 2"),
        (
            "from contextlib import *\n@contextmanager\ndef solve(x):\n    yield x",
            "solve",
            "with solve(1) as x: assert x == 2",
        ),
        (CLASS, "Box.__init__", "assert Box(1).x == 2"),
        (CLASS, "Box.__next__", "assert next(Box(1)) == 2"),
        (CLASS, "Box.twice", "assert Box(1).twice == 2"),
    ],
)
def test_what_cannot_be_sent_between_processes_is_tested_in_one(
    sandbox: Sandbox, code: str, function: str, test: str
) -> None:
    name = function.partition(".")[0]
    tests = f"from program import *\ndef test_a():\n    {test}\n    assert {name}(1, 2) is None"
    given = {"code": code, "function": function, "test_code": tests}
    task = EvolutionRequest.model_validate(given).task(sandbox, 1.0)
    [screened] = task.screen(sandbox, [(frozenset(), task.space.source)])
    [alone] = task.evaluate(sandbox, [(frozenset(), task.space.source)])
    assert not screened.fixed
    assert alone.passed == screened.passed


def test_what_can_be_sent_is_confirmed_in_two_processes(sandbox: Sandbox) -> None:
    tests = "from program import solve\ndef test_a():\n    assert solve([1]) == [2]\n"
    given = {"code": CODE, "function": "solve", "test_code": tests}
    task = EvolutionRequest.model_validate(given).task(sandbox, 1.0)
    assert task.suite is not None
    assert not task.suite.within


STATEFUL = "seen = []\ndef solve(x):\n    seen.append(x)\n    return x"
WAITS = "async def solve(x):\n    return x"


@pytest.mark.process
@pytest.mark.parametrize(
    ("code", "test"),
    [
        (STATEFUL, "program.solve(1); [one] = program.seen; assert one == 2"),
        (STATEFUL, "program.solve(1); assert len(program.seen) == 2"),
        (WAITS, "assert asyncio.run(asyncio.wait_for(program.solve(1), 0.1)) == 2"),
    ],
)
def test_checks_that_may_only_pass_in_one_process_are_run_in_one(code: str, test: str) -> None:
    tests = f"import asyncio, program\ndef test_a():\n    {test}\n"
    request = EvolutionRequest(code=code, function="solve", test_code=tests)
    with request.sandbox() as sandbox:
        task = request.task(sandbox, 1.0)
    assert task.given is not None
    assert not task.given.fixed
    assert task.suite is not None
    assert task.suite.within


@pytest.mark.process
def test_what_the_sandbox_does_not_allow_is_named_and_left_out() -> None:
    """No program can pass such a test, so the search need not try."""
    tests = """
import asyncio, pytest
from pathlib import Path
from threading import Thread
from program import solve
@pytest.fixture
def rows():
    return Path(__file__).with_name("rows.json").read_text()
def test_thread():
    Thread(target=int).start()
    assert solve([1]) == [2]
def test_loop():
    loop = asyncio.SelectorEventLoop()
    assert loop.run_until_complete(asyncio.sleep(0)) == solve([1])
@pytest.mark.parametrize("number", [1, 2])
def test_file(rows, number):
    assert solve([1]) == rows
def test_module():
    import module_that_nobody_has
    assert solve([1]) == [2]
class TestWrapped:
    def test_wrapped(self):
        try:
            open("rows.json")
        except OSError as error:
            raise ValueError("no rows") from error
        assert solve([1]) == [2]
"""
    plain = "def test_plain():\n    assert solve([1]) == [2]\n"
    request = EvolutionRequest(code=CODE, function="solve", test_code=tests)
    with request.sandbox() as sandbox:
        with pytest.raises(ValueError, match="no test of solve") as caught:
            request.task(sandbox, 5.0)
        more = request.model_copy(update={"test_code": tests + plain})
        task = more.task(sandbox, 5.0)
    for reason in (
        "test_thread starts a thread, which the sandbox forbids",
        "test_loop opens a file, a pipe, a socket or an event loop, which the sandbox forbids",
        "test_file uses the file tests/rows.json, which the sandbox forbids",
        "test_module imports module_that_nobody_has, which is not installed",
        "TestWrapped.test_wrapped uses the file rows.json",
    ):
        assert reason in str(caught.value)
    assert task.check_names == ["test_plain, line 29"]
    assert task.suite is not None
    assert len(task.suite.left_out) == 5


def test_tests_that_would_reach_the_function_are_named_if_they_cannot_run() -> None:
    tests = """
from threading import Thread
from program import Row, other
def test_thread():
    Thread(target=int).start()
    row = Row()
    row.price = 1
    del row.price
def test_other():
    assert other(Row) == 1
"""
    code = "class Row:\n    def __delattr__(self, name):\n        pass\n"
    code += "def other(x):\n    return 2\n"
    request = EvolutionRequest(code=code, function="Row.__delattr__", test_code=tests)
    why = r"no test that can be run calls Row\.__delattr__: test_thread starts a thread"
    with request.sandbox() as sandbox, pytest.raises(ValueError, match=why):
        request.task(sandbox, 5.0)


def test_a_refusal_that_is_handled_is_named_if_the_file_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No program can pass such a test; without the file, the program would see an error anyway."""
    tests = """
import os
from program import solve
def read(name):
    try:
        with open(name) as file:
            return file.read()
    except OSError:
        return ""
def test_file():
    assert read("rows.json") + str(solve(1)) == "rows2"
def test_process():
    try:
        started = os.fork() > 0
    except OSError:
        started = False
    assert started
    assert solve(1) == 2
def test_nothing_there():
    assert read("settings.toml") + str(solve(1)) == "2"
def test_passes():
    assert read("rows.json") + str(solve(1)) == "1"
"""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.json").write_text("rows")
    request = EvolutionRequest(code=CODE, function="solve", test_code=tests)
    with request.sandbox() as sandbox:
        task = request.task(sandbox, 5.0)
    assert task.suite is not None
    assert [each.partition(",")[0] for each in task.suite.left_out] == [
        "test_file uses the file rows.json",
        "test_process starts a process",
    ]
    assert all(each.endswith("(the error is handled there)") for each in task.suite.left_out)
    assert task.check_names == ["test_nothing_there, line 20", "test_passes, line 22"]


@pytest.mark.parametrize("passing", ["", "def test_passes():\n    assert solve(2) == 2\n"])
def test_a_handled_refusal_does_not_leave_out_the_only_test_that_fails(
    sandbox: Sandbox, passing: str
) -> None:
    """The function may be why it fails."""
    code = """
def solve(x):
    try:
        open("/etc/passwd").close()
    except OSError:
        pass
    return x
"""
    tests = "from program import solve\ndef test_a():\n    assert solve(1) == 2\n" + passing
    given = {"code": code, "function": "solve", "test_code": tests}
    task = EvolutionRequest.model_validate(given).task(sandbox, 5.0)
    assert task.suite is not None
    assert list(task.suite.left_out) == []
    assert task.check_names[0] == "test_a, line 3"


def test_a_test_that_ends_by_itself_is_named_and_left_out(sandbox: Sandbox) -> None:
    """No program can pass it; what the function decides stays a failing check."""
    tests = """
import os, signal, sys
from program import solve
def stop():
    raise KeyboardInterrupt
def test_dies():
    assert solve(1) == 2
    os.kill(os.getpid(), signal.SIGKILL)
def test_exits():
    os._exit(solve(1))
def test_raises():
    print(solve(1))
    sys.exit(1)
def test_helper():
    solve(1)
    stop()
def test_decides():
    if solve(1) != 2:
        sys.exit("wrong")
"""
    code = CODE + "\ndef main():\n    raise SystemExit(solve(1))"
    tests += "def test_program():\n    from program import main\n    main()"
    given = {"code": code, "function": "solve", "test_code": tests}
    task = EvolutionRequest.model_validate(given).task(sandbox, 5.0)
    assert task.suite is not None
    how = " itself, with any version of the function"
    assert [each.removesuffix(how) for each in task.suite.left_out] == [
        "test_dies ends the process with os.kill",
        "test_exits ends the process with os._exit",
        "test_raises raises SystemExit",
        "test_helper raises KeyboardInterrupt",
    ]
    assert task.check_names == [
        "test_decides",
        "test_program",
    ]


def test_what_is_imported_or_read_late_is_there_or_missing_as_ever() -> None:
    """Time zones and codecs are looked for in files, which cannot be opened."""
    tests = """
import codecs
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError
import pytest
from program import solve
def test_zone():
    assert ZoneInfo("Europe/Berlin").key == solve("Europe/Berlin")
    with pytest.raises(ZoneInfoNotFoundError):
        ZoneInfo("Europe/Nowhere")
def test_codec():
    with pytest.raises(LookupError):
        codecs.lookup("nobody's")
    assert solve(1) == 1
"""
    request = EvolutionRequest(code=CODE, function="solve", test_code=tests)
    with request.sandbox() as sandbox:
        task = request.task(sandbox, 5.0)
        [given] = task.evaluate(sandbox, [(frozenset(), task.space.source)])
    assert task.suite is not None
    assert (task.suite.left_out, given.fixed) == ((), True)


def test_tests_that_never_end_are_refused_and_not_searched_on(sandbox: Sandbox) -> None:
    tests = (
        "from program import solve\n"
        "def test_a():\n"
        "    assert solve(1) == 2\n"
        "    while True:\n"
        "        pass\n"
    )
    request = EvolutionRequest.model_validate(
        {"code": CODE, "function": "solve", "test_code": tests}
    )
    with pytest.raises(ValueError, match=r"0\.5 s, even if solve"):
        request.task(sandbox, 0.5)


@pytest.mark.process
def test_a_program_may_use_the_private_folder_of_its_tests() -> None:
    tests = """
import os, tempfile
import pytest
from pathlib import Path
from program import solve
@pytest.fixture(scope="session")
def kept(tmp_path_factory):
    return tmp_path_factory.mktemp("kept")
def test_path(tmp_path):
    (tmp_path / "in.txt").write_text("a\\nb")
    assert solve(tmp_path / "in.txt") == ["a", "b"]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["in.txt", "in.txt.seen"]
def test_text(tmp_path, monkeypatch):
    assert list(tmp_path.iterdir()) == []
    monkeypatch.chdir(tmp_path)
    Path("in.txt").write_text("c")
    assert solve("in.txt") == ["c"]
def test_beside():
    assert solve(Path(__file__).parent / "data" / "in.txt") == ["f"]
def test_others(kept):
    assert os.getcwd() != str(kept)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "x")
        Path(path).write_text("d")
        assert solve(path) == ["d"]
    assert not os.path.exists(folder)
    (kept / "x").write_text("e")
    assert solve(str(kept / "x")) == ["e"]
"""
    code = (
        "def solve(path):\n    with open(f'{path}.seen', 'w') as seen:\n        seen.write('x')\n"
        "    with open(path) as file:\n        return file.read().split()\n"
    )
    request = EvolutionRequest(code=code, function="solve", test_code=tests)
    with request.sandbox() as sandbox:
        if sandbox.layers["files"] != "on":
            pytest.skip(f"this host has no private folders: {sandbox.layers['files']}")
        task = request.task(sandbox, 5.0)
        wrong = code.replace(".split()", ".split('b')")
        programs = [(frozenset(), text) for text in (code, wrong, code)]
        for run in (task.screen, task.evaluate, task.within.evaluate):
            given, other, again = run(sandbox, programs)
            assert given.fixed or run == task.evaluate  # a path is not plain data
            assert other.passed.count(False) > given.passed.count(False)
            assert again.passed == given.passed
        assert task.suite is not None
        assert [each.partition(",")[0] for each in task.suite.left_out] == [
            "test_beside uses the file tests/data/in.txt.seen"
        ]
        assert task.suite.within


@pytest.mark.parametrize(
    ("set_up", "place"),
    [
        ("def setup_module(module):\n    module.x.y = 1\n", "setup_module: .*'x'"),
        ("def setup_function():\n    int('a')\n", r"setup_function: .* base 10: 'a'"),
        (
            "class E(Exception):\n    __str__ = None\ndef setup_module():\n    raise E\n",
            "setup_module$",
        ),
    ],
)
def test_a_failing_set_up_is_named(sandbox: Sandbox, set_up: str, place: str) -> None:
    tests = f"from program import solve\n{set_up}def test_a():\n    assert solve(1) == 2\n"
    request = EvolutionRequest(code=CODE, function="solve", test_code=tests)
    with pytest.raises(ValueError, match=rf"test_a.*in {place}"):
        request.task(sandbox, 5.0)

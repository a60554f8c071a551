"""Asynchronous programs and tests, in an event loop whose clock jumps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.se_darwin.sandbox import (
    Limits,
    ProgramSources,
    PytestSuite,
    Sandbox,
    TestCase,
    TestSources,
)

pytestmark = pytest.mark.process

LIMITS = Limits(cpu_seconds=1.0, wall_seconds=20.0)
PROGRAM = """
import asyncio
left = []

async def solve(x, seconds=3600):
    await asyncio.sleep(seconds)
    return x + 1

async def forget():
    left.append(asyncio.ensure_future(work()))

async def work():
    while True:
        await asyncio.sleep(1)
        left.append("worked")

class Room:
    async def __aenter__(self):
        await asyncio.sleep(1)
        return self
    async def __aexit__(self, *error):
        await asyncio.sleep(1)
    async def count(self, most):
        for number in range(most):
            await asyncio.sleep(1)
            yield number
"""
TESTS = """
import asyncio, time, unittest
import anyio, pytest
from program import Room, forget, left, solve

@pytest.fixture
async def three():
    return await solve(2)

@pytest.fixture
async def room():
    async with Room() as made:
        yield made
    closed.append(True)

closed = []

def test_run():
    began = time.monotonic()
    assert asyncio.run(solve(1)) == 2
    assert 3600 <= time.monotonic() - began < 3601

@pytest.mark.asyncio
async def test_mark(three):
    assert await solve(three) == 4
    assert await asyncio.gather(solve(1, 5), solve(2, 1)) == [2, 3]

@pytest.mark.anyio
async def test_anyio(room, anyio_backend):
    assert anyio_backend == "asyncio"
    assert [number async for number in room.count(3)] == [0, 1, 2]
    with anyio.move_on_after(10) as scope:
        await solve(1)
    assert scope.cancelled_caught
    assert await anyio.to_thread.run_sync(len, "abc") == 3

class TestRooms(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.value = await solve(4)
        self.addAsyncCleanup(solve, 1)
    async def test_value(self):
        self.assertEqual(self.value, 5)
        with self.assertRaises(asyncio.TimeoutError):
            await asyncio.wait_for(solve(1), 10)

async def test_thread():
    assert closed == [True]
    assert await asyncio.to_thread(sum, [1, 2]) == await solve(2)
    time.sleep(600)

async def test_leaves_a_task_behind():
    await forget()
    assert await solve(1, 3) == 2

async def test_which_has_ended():
    count = len(left)
    await solve(1)
    assert len(left) == count > 1
"""


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    modules = ["asyncio", "anyio", "anyio._backends._asyncio", "pytest", "unittest.async_case"]
    with Sandbox(modules=modules, packages=[Path(pytest.__file__).parents[1]]) as sandbox:
        yield sandbox


def passed(
    sandbox: Sandbox, tests: str, source: str = PROGRAM, *, screened: bool = False
) -> dict[str, bool]:
    program = ProgramSources(PROGRAM, "program")
    suite = PytestSuite.prepare(TestSources(tests), program, "solve")
    suite = sandbox.collect(suite, function="solve", limits=LIMITS)
    execute = sandbox.screen if screened else sandbox.run
    [execution] = execute([source], suite, function="solve", limits=LIMITS)
    pairs = zip(suite.cases(), execution.outputs, strict=True)
    return {str(case.arguments[0]): case.passes(output) for case, output in pairs}


def test_every_style_of_asynchronous_test_runs_without_waiting(sandbox: Sandbox) -> None:
    began = time.monotonic()

    results = passed(sandbox, TESTS, screened=True)

    assert [name for name, is_passed in results.items() if not is_passed] == []
    assert len({name.partition(",")[0] for name in results}) == 7
    assert time.monotonic() - began < LIMITS.wall_seconds

    wrong = PROGRAM.replace("return x + 1", "return x + 2")
    failed = {name for name, is_passed in passed(sandbox, TESTS, wrong, screened=True).items()}
    assert {name.partition(",")[0] for name in failed} >= {"test_run", "test_mark", "test_thread"}


def test_a_coroutine_function_is_confirmed_in_a_process_of_its_own(sandbox: Sandbox) -> None:
    tests = "import asyncio\nfrom program import solve\n"
    tests += "def test_a():\n    assert asyncio.run(solve(1)) == 2\n"
    tests += "async def test_b():\n    assert await solve(1) == 3\n"

    assert list(passed(sandbox, tests).values()) == [True, False]


@pytest.mark.parametrize(
    ("body", "is_passed"),
    [
        ("return x + 1", True),
        ("await asyncio.get_running_loop().create_future()", False),  # nothing will wake it
        ("while True: await asyncio.sleep(1)", False),
        ("while True: await asyncio.sleep(0)", False),
        ("await asyncio.open_connection('127.0.0.1', 80)", False),
        ("asyncio.ensure_future(solve(x)); return x + 1", True),
        ("while time.monotonic() < began + 60: await asyncio.sleep(0.5)\n    return x + 1", True),
        ("asyncio.set_event_loop_policy(None); return x + 1", True),
        ("asyncio.ensure_future(stay()); await asyncio.sleep(0); return x + 1", False),
    ],
)
def test_nothing_hangs(sandbox: Sandbox, body: str, *, is_passed: bool) -> None:
    source = f"import asyncio, time\nbegan = time.monotonic()\nasync def solve(x):\n    {body}\n"
    source += """
async def stay():
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass
"""
    tests = "import asyncio\nfrom program import solve\n"
    tests += "def test_a():\n    assert asyncio.run(solve(1)) == 2\n"

    assert passed(sandbox, tests, source, screened=True) == {"test_a, line 4": is_passed}


def test_dates_follow_the_clock(sandbox: Sandbox) -> None:
    source = """
import asyncio, time
from datetime import UTC, date, datetime
def looks():
    seconds = time.mktime(time.localtime()), time.time(), time.clock_gettime(time.CLOCK_MONOTONIC)
    seconds += tuple(time.mktime(time.strptime(text)) for text in (time.asctime(), time.ctime()))
    seconds += int(time.strftime("%s")), time.clock_gettime_ns(time.CLOCK_REALTIME) / 1e9
    return datetime.now(), datetime.utcnow(), datetime.now(UTC), datetime.today(), *seconds
async def solve(x):
    first, day = looks(), date.today()
    await asyncio.sleep(86_400 * x)
    assert (date.today() - day).days == x and type(looks()[0]) is datetime
    assert time.strftime("%Y", time.gmtime(0)) == "1970" == time.asctime(time.gmtime(0))[-4:]
    assert time.clock_gettime(time.CLOCK_PROCESS_CPUTIME_ID) < 3600
    return {round(getattr(b - a, "days", (b - a) / 86_400)) for a, b in zip(first, looks())}
"""
    tests = "import asyncio\nfrom program import solve\n"
    tests += "def test_a():\n    assert asyncio.run(solve(3)) == {3}\n"

    assert passed(sandbox, tests, source, screened=True) == {"test_a, line 4": True}


def test_calls_are_awaited(sandbox: Sandbox) -> None:
    source = "import asyncio\nasync def solve(x):\n    await asyncio.sleep(60)\n    return [x]\n"
    items = "async def solve(x):\n    for number in range(x):\n        yield number\n"
    case = TestCase.returning((2,), [2])

    [value, listed] = sandbox.run([source, items], [case], function="solve", limits=LIMITS)

    assert case.passes(value.outputs[0])
    assert TestCase.returning((2,), [0, 1]).passes(listed.outputs[0])

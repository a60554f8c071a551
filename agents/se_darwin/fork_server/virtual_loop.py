"""An event loop without sockets, threads and waiting, for programs in the sandbox.

Its clock jumps to the next timer when nothing is ready, so `asyncio.sleep` and `asyncio.wait_for`
cost nothing, and every run is the same. Where nothing is ready and no timer is left, a real loop
would wait forever; this one raises `DeadlockError`. `time` and `datetime` show the same clock.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import inspect
import sys
import time
from asyncio import runners
from collections.abc import AsyncIterator, Awaitable, Callable, Set
from datetime import UTC, datetime, tzinfo
from typing import Any, NoReturn

from .canonical import MAX_ITEMS
from .refusal import NotOfferedError

_TICK = 1e-6  # seconds that each look at the clock takes, so that to wait for it ends
_CLOCK_NUMBERS = {
    "CLOCK_REALTIME": "time",
    **dict.fromkeys(("CLOCK_MONOTONIC", "CLOCK_MONOTONIC_RAW", "CLOCK_BOOTTIME"), "monotonic"),
}
_END_SECONDS = 1.0  # of the virtual clock, in which a task that a test left behind may end
_RUN_END_SECONDS = 60.0  # in which all tasks of an `asyncio.run` must


class DeadlockError(RuntimeError):
    """Every task waits, and nothing is left that could wake one."""

    def __init__(self) -> None:
        super().__init__("every task waits, and neither a timer nor another task can wake one")


class EndlessTaskError(RuntimeError):
    """A task goes on when it is cancelled: outside, `asyncio.run` would wait for it forever."""

    def __init__(self) -> None:
        super().__init__("a task does not end when it is cancelled")


class VirtualClock:
    """Seconds that all clocks of this process share.

    Attributes:
        seconds: Seconds since the candidate began.
    """

    def __init__(self) -> None:
        self._began = {name: getattr(time, name)() for name in ("time", "monotonic")}
        self._began["perf_counter"] = self._began["monotonic"]
        self.seconds = 0.0

    def install(self) -> None:
        """Let `time` and `datetime` show this clock, and `time.sleep` advance it."""
        for name in self._began:
            setattr(time, name, _ClockFunction(self, name))
            setattr(time, f"{name}_ns", _ClockFunction(self, name, scale=10**9))
        vars(time)["sleep"] = _Sleep(self)
        for name in ("localtime", "gmtime", "ctime"):
            setattr(time, name, _TimeOf(name))
        for name, arguments in (("asctime", 1), ("strftime", 2)):
            setattr(time, name, _TimeOf(name, arguments=arguments, present="localtime"))
        for name, scale in (("clock_gettime", 0), ("clock_gettime_ns", 10**9)):
            setattr(time, name, _ClockById(self, name, scale=scale))
        # `date.today` asks `time.time`; `now` asks the system. No subclass takes the place of the
        # class, since programs have imported it and compare types.
        [methods] = gc.get_referents(vars(datetime))
        methods |= {"now": classmethod(_now), "utcnow": classmethod(_utcnow)}
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(datetime))

    def read(self, name: str) -> float:
        """Return what ``time.name`` shows; time passes by it."""
        self.seconds += _TICK
        began: float = self._began[name]
        return began + self.seconds


class _ClockFunction:
    """Like a builtin function, an object of this class does not become a method of a class."""

    def __init__(self, clock: VirtualClock, name: str, *, scale: int = 0) -> None:
        self.__name__, self._clock, self._name = name, clock, name
        self._scale = scale

    def __call__(self) -> float:
        seconds = self._clock.read(self._name)
        return int(seconds * self._scale) if self._scale else seconds


class _ClockById:
    """Shows the clock for the numbers of clocks that go on while a program sleeps."""

    def __init__(self, clock: VirtualClock, name: str, *, scale: int) -> None:
        self.__name__, self._function = name, getattr(time, name)
        self._clocks = {
            getattr(time, number): _ClockFunction(clock, shown, scale=scale)
            for number, shown in _CLOCK_NUMBERS.items()
        }

    def __call__(self, number: int, /) -> float:
        clock = self._clocks.get(number)
        seconds: float = clock() if clock is not None else self._function(number)
        return seconds


class _TimeOf:
    """A function of `time` that takes the present time without its last argument."""

    def __init__(self, name: str, *, arguments: int = 1, present: str = "time") -> None:
        self.__name__, self._function = name, getattr(time, name)
        self._others, self._present = arguments - 1, present

    def __call__(self, *arguments: object) -> object:
        if self._present == "time" and arguments == (None,):
            arguments = ()
        if len(arguments) == self._others:
            arguments = (*arguments, getattr(time, self._present)())
        return self._function(*arguments)


def _now(cls: type[datetime], tz: tzinfo | None = None) -> datetime:
    return cls.fromtimestamp(time.time(), tz)


def _utcnow(cls: type[datetime]) -> datetime:
    return cls.fromtimestamp(time.time(), UTC).replace(tzinfo=None)


class _Sleep:
    def __init__(self, clock: VirtualClock) -> None:
        self.__name__, self._clock = "sleep", clock

    def __call__(self, seconds: float, /) -> None:
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        self._clock.seconds += seconds


CLOCK = VirtualClock()
_OF_TESTS: list[asyncio.AbstractEventLoop] = []


class _Selector:
    """In place of a selector: there is nothing to wait for but the next timer."""

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise DeadlockError
        CLOCK.seconds += timeout
        return []


class VirtualEventLoop(asyncio.BaseEventLoop):
    """The event loop; what others do in threads, it does at its next turn."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = _Selector()

    def time(self) -> float:
        """Return the seconds of the clock."""
        return CLOCK.read("monotonic")

    def run_in_executor(
        self, executor: object, func: Callable[..., Any], *args: object
    ) -> asyncio.Future[Any]:
        """Call *func* at the next turn, since no thread can be started here."""
        del executor
        future = self.create_future()

        def call() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:  # raised where the future is awaited
                future.set_exception(error)

        self.call_soon(call)
        return future

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: object) -> None:
        """Accept a handler: no signal arrives here."""

    def remove_signal_handler(self, sig: int) -> bool:
        """Return that there was none."""
        del sig
        return False

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody waits in a system call."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise NotOfferedError("an event loop with sockets, files or processes")

    add_reader = add_writer = remove_reader = remove_writer = _refuse
    create_connection = create_server = create_datagram_endpoint = _refuse
    create_unix_connection = create_unix_server = getaddrinfo = _refuse
    subprocess_exec = subprocess_shell = _refuse


class _Policy(asyncio.DefaultEventLoopPolicy):
    _loop_factory = VirtualEventLoop


def install() -> None:
    """Give this process the virtual clock and virtual event loops."""
    CLOCK.install()
    vars(runners)["_cancel_all_tasks"] = _cancel_all_tasks
    begin()


def begin() -> None:
    """Start over for the next candidate: nobody runs the loops and tasks of the last one."""
    CLOCK.seconds = 0.0
    asyncio._set_running_loop(None)
    asyncio.set_event_loop_policy(_Policy())
    _OF_TESTS[:] = [VirtualEventLoop()]


def _cancel_all_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Do what that of `asyncio.runners` does, but wait for the tasks no longer than a minute.

    Raises:
        EndlessTaskError: One has not ended.
    """
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        _, endless = loop.run_until_complete(asyncio.wait(left, timeout=_RUN_END_SECONDS))
        if endless:
            raise EndlessTaskError


def adapt_packages() -> None:
    """Let anyio call in this thread what it would call in another one."""
    backend = sys.modules.get("anyio._backends._asyncio")
    if backend is not None:
        backend.AsyncIOBackend.run_sync_in_worker_thread = classmethod(_in_this_thread)


async def _in_this_thread(
    cls: type, /, func: Callable[..., object], args: tuple[object, ...], *_: object, **__: object
) -> object:
    del cls
    await asyncio.sleep(0)
    return func(*args)


def complete(awaitable: Awaitable[Any]) -> Any:  # noqa: ANN401 - any result
    """Return the result of *awaitable*, run in the loop that all tests of a candidate share."""
    loop = tests_loop()
    asyncio.set_event_loop(loop)  # `asyncio.run` takes it away
    return loop.run_until_complete(awaitable)


def tests_loop() -> asyncio.AbstractEventLoop:
    """Return the loop that all tests of a candidate share; `asyncio.run` has one of its own."""
    [loop] = _OF_TESTS
    return loop


def completed(value: Any) -> Any:  # noqa: ANN401 - any result
    """Return *value*; of a coroutine its result, of an asynchronous generator its items."""
    if inspect.isasyncgen(value):
        value = _items(value)
    return complete(value) if inspect.iscoroutine(value) else value


async def _items(values: AsyncIterator[object]) -> list[object]:
    items: list[object] = []
    async for value in values:
        items.append(value)
        if len(items) == MAX_ITEMS:
            break
    return items


def tasks() -> Set[asyncio.Task[Any]]:
    """Return the tasks of the tests' loop that have not ended."""
    return asyncio.all_tasks(tests_loop())


def end_tasks(kept: Set[asyncio.Task[Any]]) -> None:
    """Cancel the tasks of the tests' loop, except those *kept*."""
    left = tasks() - kept
    for task in left:
        task.cancel()
    if left:
        complete(asyncio.wait(left, timeout=_END_SECONDS))

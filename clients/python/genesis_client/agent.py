"""The client of one agent."""

from __future__ import annotations

import atexit
import os
import re
import time
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from genesis_client.answers import (
    MOST_ERROR,
    Choice,
    Decision,
    Ranking,
    own_order,
    read_choice,
    read_ranking,
)
from genesis_client.exchange import UnavailableError
from genesis_client.place import AnyPath, find_place, spool_folder
from genesis_client.sender import Sender, Status
from genesis_client.spool import Spool
from genesis_client.values import encode, finite, plain_mapping, well_formed

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

EXIT_SECONDS = 1.0  # for reports that are not sent when the process ends
ASYNC_THREADS = 8
MOST_GROUP = 200  # characters
_AGENT = re.compile(r"[a-z][a-z0-9-]{0,31}")
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
A = TypeVar("A", bound=Mapping[str, object])
T = TypeVar("T")


class Agent:
    """Asks the predictor for an agent's world model, and reports what happened.

    Nothing that goes wrong with the service is raised: the answer is then the order in which the
    agent has given its actions, with the reason. Reports are first written to a spool on disk, and
    sent by a thread, again and again, until the predictor has taken them. Make one for each agent
    and process; threads and forked children may share it.

    Values are text, numbers, booleans, None, and lists and mappings of these; NumPy's scalars and
    arrays are converted, and NaN means missing.

    Args:
        name: Name of the agent in the daemon.
        home: Folder of the daemon, with ``predict.sock`` in it.
        socket: Path of the predictor's Unix socket.
        url: Its address instead, such as ``https://genesis.example:9470``.
        token: Token for *url*.
        deadline: Seconds after which the agent's own order is taken.
        spool: Folder for reports that wait; by default in the user's folder for state.
        spool_bytes: Reports of a process beyond so many bytes are dropped.

    Raises:
        ValueError: An argument, or a variable of the environment, cannot be used.
    """

    def __init__(
        self,
        name: str,
        *,
        home: AnyPath | None = None,
        socket: AnyPath | None = None,
        url: str | None = None,
        token: str | None = None,
        deadline: float = 0.05,
        spool: AnyPath | None = None,
        spool_bytes: int = 16 << 20,
    ) -> None:
        if not _AGENT.fullmatch(name):
            raise ValueError(
                f"an agent's name has up to 32 of a-z, 0-9 and -, a letter first, got {name!r}"
            )
        if not 0 < deadline < 3600:
            raise ValueError(f"deadline must be between 0 and 3600 seconds, got {deadline}")
        self.name = name
        self.deadline = deadline
        self._place = find_place(home, socket, url, token)
        self._folder = spool_folder(name, self._place, spool)
        self._spool_bytes = spool_bytes
        self._threads: ThreadPoolExecutor | None = None
        self._renew()
        _agents.add(self)

    @property
    def status(self) -> Status:
        """What waits, was sent, was refused and was dropped in this process."""
        return self._sender.status

    def rank(
        self,
        observation: Mapping[str, object],
        actions: Sequence[Mapping[str, object]],
        *,
        deadline: float | None = None,
    ) -> Ranking:
        """Rank *actions*, without taking one.

        Args:
            observation: Fields of the state.
            actions: Possible actions, in the agent's own order: the best first.
            deadline: Seconds for this call.

        Raises:
            TypeError, ValueError: A value cannot be sent; the message names it.
        """
        return self._rank(_question(observation, actions), len(actions), self._until(deadline))

    async def arank(
        self,
        observation: Mapping[str, object],
        actions: Sequence[Mapping[str, object]],
        *,
        deadline: float | None = None,
    ) -> Ranking:
        """Do as `rank`, in a thread."""
        question, until = _question(observation, actions), self._until(deadline)
        return await self._in_thread(lambda: self._rank(question, len(actions), until))

    def choose(
        self,
        observation: Mapping[str, object],
        actions: Sequence[A],
        *,
        group: str | None = None,
        deadline: float | None = None,
    ) -> Decision[A]:
        """Choose one of *actions*; a context manager that reports what came of it.

        Args:
            observation: Fields of the state.
            actions: Possible actions, in the agent's own order: the best first.
            group: Episode, task or conversation to which the decision belongs.
            deadline: Seconds for this call.

        Raises:
            TypeError, ValueError: A value cannot be sent; the message names it.
        """
        decision = _decision(observation, actions, group)
        return self._choose(decision, actions, self._until(deadline))

    @asynccontextmanager
    async def achoose(
        self,
        observation: Mapping[str, object],
        actions: Sequence[A],
        *,
        group: str | None = None,
        deadline: float | None = None,
    ) -> AsyncIterator[Decision[A]]:
        """Do as `choose`, in a thread, as an asynchronous context manager."""
        question, until = _decision(observation, actions, group), self._until(deadline)
        with await self._in_thread(lambda: self._choose(question, actions, until)) as decision:
            yield decision

    def report(
        self,
        decision_id: str,
        next_observation: Mapping[str, object] | None = None,
        *,
        reward: float | None = None,
        terminated: bool = False,
        error: str = "",
        final: bool = True,
    ) -> bool:
        """Report the outcome of a decision, in any process and any time before its deadline.

        Args:
            decision_id: `Decision.id`.
            next_observation: What was observed after the action, with the model's targets.
            reward: Reward, if there is one.
            terminated: Whether the group ended with the action.
            error: Text of the exception that the action raised.
            final: False if more of the outcome will follow.

        Returns:
            Whether the report was kept; False if there was no room.

        Raises:
            TypeError, ValueError: A value cannot be sent; the message names it.
        """
        _check_id(decision_id, "decision_id")
        outcome: dict[str, object] = {"final": bool(final)}
        if next_observation is not None:
            outcome["next_observation"] = plain_mapping(next_observation, "next_observation")
        if reward is not None:
            outcome["reward"] = finite(reward, "reward")
        if terminated:
            outcome["terminated"] = True
        if error:
            outcome["error"] = well_formed(str(error)[:MOST_ERROR])
        return self._sender.report(f"decisions/{decision_id}/outcome", encode(outcome))

    def record(
        self,
        *,
        group: str,
        observation: Mapping[str, object],
        action: Mapping[str, object],
        reward: float = 0.0,
        next_observation: Mapping[str, object] | None = None,
        terminated: bool = False,
        propensity: float | None = None,
        info: Mapping[str, object] | None = None,
        record_id: str | None = None,
    ) -> bool:
        """Report a step that was taken without asking.

        Args:
            group: Episode, task or conversation to which the step belongs.
            observation: Fields of the state.
            action: Fields of the action.
            reward: Reward of the step.
            next_observation: What was observed after the action, with the model's targets.
            terminated: Whether the group ended with the step.
            propensity: Probability with which a policy chose the action, if one did.
            info: Further fields to keep.
            record_id: Equal for records of the same step, which are recorded once.

        Returns:
            Whether the record was kept; False if there was no room.

        Raises:
            TypeError, ValueError: A value cannot be sent; the message names it.
        """
        if record_id is not None:
            _check_id(record_id, "record_id")
        transition: dict[str, object] = {
            "id": record_id or _new_id(),
            "group": _group(group),
            "observation": plain_mapping(observation, "observation"),
            "action": plain_mapping(action, "action"),
            "reward": finite(reward, "reward"),
            "next_observation": plain_mapping(next_observation or {}, "next_observation"),
            "terminated": bool(terminated),
        }
        if propensity is not None:
            transition["propensity"] = finite(propensity, "propensity")
            if not 0 < propensity <= 1:
                raise ValueError(f"propensity must be above 0 and at most 1, got {propensity}")
        if info:
            transition["info"] = plain_mapping(info, "info")
        return self._sender.report("transitions", encode(transition))

    def flush(self, seconds: float = 5.0) -> bool:
        """Try now to send what waits; True if nothing of this process waits any longer."""
        return self._sender.flush(seconds)

    def close(self, seconds: float = EXIT_SECONDS) -> None:
        """Send what waits, if the predictor answers, and end the thread. A later call starts it."""
        self._sender.stop()
        self._sender.join(seconds)
        if self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None

    def __enter__(self) -> Agent:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _renew(self) -> None:
        """Set up what belongs to one process: connections, thread, file."""
        self._sender = Sender(self.name, self._place, Spool(self._folder, self._spool_bytes))
        self._threads = None
        _senders.add(self._sender)
        self._finalizer = weakref.finalize(self, self._sender.stop)
        self._finalizer.atexit = False  # see _close_all

    def _until(self, deadline: float | None) -> float:
        return time.monotonic() + (self.deadline if deadline is None else deadline)

    def _rank(self, question: dict[str, object], count: int, until: float) -> Ranking:
        try:
            return self._sender.ask(
                "rank", encode(question), until, lambda answer: read_ranking(answer, count)
            )
        except UnavailableError as error:
            return own_order(count, str(error))

    def _choose(
        self, question: dict[str, object], actions: Sequence[A], until: float
    ) -> Decision[A]:
        count = len(actions)
        try:
            choice = self._sender.ask(
                "decisions", encode(question), until, lambda answer: read_choice(answer, count)
            )
        except UnavailableError as error:
            choice = Choice(own_order(count, str(error)), 0, None)
            taken = {**question, "chosen": 0, "propensity": None, "at": time.time()}
            self._sender.report("choices", encode(taken))
        return Decision(self, str(question["id"]), choice, actions[choice.chosen])

    async def _in_thread(self, call: Callable[[], T]) -> T:
        """Run *call* in a thread of ours: those of asyncio may all be busy with slow work.

        A call waits for those before it, and each of these ends by an earlier deadline.
        """
        import asyncio
        from concurrent.futures import ThreadPoolExecutor

        if self._threads is None:
            self._threads = ThreadPoolExecutor(ASYNC_THREADS, "genesis-client")
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


def _question(
    observation: Mapping[str, object], actions: Sequence[Mapping[str, object]]
) -> dict[str, object]:
    if not actions:
        raise ValueError("there is no action to choose from")
    return {
        "observation": plain_mapping(observation, "observation"),
        "actions": [
            plain_mapping(action, f"actions[{number}]") for number, action in enumerate(actions)
        ],
    }


def _decision(
    observation: Mapping[str, object],
    actions: Sequence[Mapping[str, object]],
    group: str | None,
) -> dict[str, object]:
    question = {"id": _new_id(), **_question(observation, actions)}
    if group is not None:
        question["group"] = _group(group)
    return question


def _new_id() -> str:
    return os.urandom(16).hex()


def _check_id(value: str, name: str) -> None:
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise ValueError(f"{name} has up to 64 letters, digits, dots, _ or -, got {value!r}")


def _group(value: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"group must be text, got {type(value).__name__}")
    if not 0 < len(value) <= MOST_GROUP:
        raise ValueError(f"group must have 1 to {MOST_GROUP} characters, got {len(value)}")
    return well_formed(value)


_agents: weakref.WeakSet[Agent] = weakref.WeakSet()
_senders: weakref.WeakSet[Sender] = weakref.WeakSet()  # may outlive their agents


def _close_all() -> None:
    """Send what waits before the process ends, within a second in all."""
    until = time.monotonic() + EXIT_SECONDS
    senders = list(_senders)
    for sender in senders:
        sender.stop()
    for sender in senders:
        sender.join(max(0.0, until - time.monotonic()))


def _renew_in_child() -> None:
    """Leave locks, thread, connections and files to the parent."""
    for sender in list(_senders):
        sender.forget()
    _senders.clear()
    for agent in list(_agents):
        agent._finalizer.detach()
        agent._renew()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_renew_in_child)

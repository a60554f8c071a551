"""Asks the process that runs an agent's own network, and trusts nothing that it answers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from genesis_fp16.domain.predictor import OWN_SOCKET, JudgedOutcomes
from genesis_fp16.predictor.judge import Waiting
from genesis_fp16.predictor.problems import ProblemError
from genesis_fp16.predictor.requests import Values

ANSWER_SECONDS = 2.0
REST_SECONDS = 2.0  # after a failure, in which its requests are answered without it
MOST_CONNECTIONS = 8  # to one process
MOST_JUDGED = 50  # outcomes of a question, so that they delay no answer for long
_MOST_JUDGED_BYTES = 1 << 20
_NO_PLUGIN = (
    "the agent overrides build_model, and its code may not run here: it is not installed, as on a "
    "machine without the daemon, or quarantined"
)
_MOST_ANSWER_BYTES = 8 << 20
_HEAD = b"POST /api/agents/%s/%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"

Finite = Annotated[float, Field(allow_inf_nan=False)]
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class OwnProcessError(Exception):
    """The process did not answer in time, or its answer is unusable; the message says why."""


class _Answer(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    agent: str
    version: Annotated[str, Field(max_length=100)] | None
    warnings: Annotated[list[Annotated[str, Field(max_length=2000)]], Field(max_length=100)]


class _Ranking(_Answer):
    order: list[int]
    chances: list[Finite | None]
    improvements: list[Finite | None]
    confidence: list[Finite]


class _Predictions(_Answer):
    predictions: list[dict[str, Any]]


class _Judged(_Answer):
    judged: JudgedOutcomes | None


class OwnProcesses:
    """Connections to the processes of agents with networks of their own.

    Args:
        agents: Folder of the agents' folders.
        notice: Receives what the log should show: event and fields.
        clock: Monotonic seconds.

    Attributes:
        without_plugin: Agents whose code may not run here, as on a machine without the daemon.
    """

    def __init__(
        self,
        agents: Path,
        notice: Callable[..., None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._agents, self._notice, self._clock = agents, notice, clock
        self._idle: dict[str, list[Connection]] = {}
        self._slots: dict[str, asyncio.Semaphore] = {}
        self._rest_until: dict[str, float] = {}
        self._failures: dict[str, str] = {}
        self.without_plugin: frozenset[str] = frozenset()

    async def rank(self, agent: str, observation: Values, actions: list[Values]) -> dict[str, Any]:
        """Answer of the process to ``/rank``.

        Raises:
            OwnProcessError: It gave no usable answer.
            ProblemError: It refuses the values.
        """
        question = {"observation": observation, "actions": actions}
        answer = await self._ask(agent, "rank", question, _Ranking)
        if sorted(answer["order"]) != list(range(len(actions))) or any(
            len(answer[name]) != len(actions) for name in ("chances", "improvements", "confidence")
        ):
            raise self._failed(agent, "its answer does not rank the actions that were sent")
        return answer

    async def predict(
        self, agent: str, observation: Values, actions: list[Values]
    ) -> dict[str, Any]:
        """Answer of the process to ``/predict``.

        Raises:
            OwnProcessError: It gave no usable answer.
            ProblemError: It refuses the values.
        """
        question = {"observation": observation, "actions": actions}
        answer = await self._ask(agent, "predict", question, _Predictions)
        if len(answer["predictions"]) != len(actions):
            raise self._failed(agent, "its answer does not predict the actions that were sent")
        return answer

    async def judge(self, agent: str, waiting: Sequence[Waiting]) -> JudgedOutcomes | None:
        """What the process says of *waiting*; as many as one question holds.

        Raises:
            OwnProcessError: It gave no usable answer.
        """
        items, size = [], 0
        for log, record in waiting[:MOST_JUDGED]:
            item = [str(log), record]
            size += len(json.dumps(item))
            if size > _MOST_JUDGED_BYTES:
                break
            items.append(item)
        if not items:
            return None
        answer = await self._ask(agent, "judge", {"items": items}, _Judged)
        judged = answer["judged"]
        if judged is None:
            return None
        made = JudgedOutcomes.model_validate(judged)
        if made.count > len(items):
            raise self._failed(agent, "it has judged more outcomes than it was sent")
        return made

    def close(self) -> None:
        """Close all connections."""
        for connections in self._idle.values():
            for _, writer in connections:
                writer.close()
        self._idle.clear()

    async def _ask(
        self, agent: str, verb: str, question: dict[str, Any], kind: type[_Answer]
    ) -> dict[str, Any]:
        if agent in self.without_plugin:
            if self._failures.get(agent) != _NO_PLUGIN:
                self._failures[agent] = _NO_PLUGIN
                self._notice("own_network_not_served", agent=agent, reason=_NO_PLUGIN)
            raise OwnProcessError(_NO_PLUGIN)
        if self._clock() < self._rest_until.get(agent, 0.0):
            raise OwnProcessError(self._failures[agent])
        content = json.dumps(question, separators=(",", ":")).encode()
        request = _HEAD % (agent.encode(), verb.encode(), len(content)) + content
        slots = self._slots.setdefault(agent, asyncio.Semaphore(MOST_CONNECTIONS))
        try:
            async with asyncio.timeout(ANSWER_SECONDS), slots:
                status, answer = await self._exchange(agent, request)
        except TimeoutError:
            raise self._failed(agent, f"it gave no answer in {ANSWER_SECONDS:g} s") from None
        except (OSError, EOFError, ValueError) as error:
            raise self._failed(agent, str(error) or type(error).__name__) from error
        if status == 200:
            try:
                made = kind.model_validate_json(answer)
            except ValidationError as error:
                raise self._failed(agent, f"its answer is malformed: {error!s:.200}") from None
            self._failures.pop(agent, None)
            return made.model_dump() | {"agent": agent}
        raise self._refusal(agent, status, answer)

    async def _exchange(self, agent: str, request: bytes) -> tuple[int, bytes]:
        """Status and body; on an error the connection is closed."""
        idle = self._idle.setdefault(agent, [])
        for last in (False, True):
            reader, writer = idle.pop() if idle and not last else await self._connect(agent)
            try:
                writer.write(request)
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.partition(b"content-length:")[2].partition(b"\r")[0])
                if not 0 <= length <= _MOST_ANSWER_BYTES:
                    raise ValueError("its answer is too large")
                body = await reader.readexactly(length)
            except asyncio.IncompleteReadError:
                writer.close()
                if last:
                    raise
            except BaseException:
                writer.close()
                raise
            else:
                idle.append((reader, writer))
                return int(head.split(b" ", 2)[1]), body
        raise EOFError("it has closed the connection")

    async def _connect(self, agent: str) -> Connection:
        return await asyncio.open_unix_connection(self._agents / agent / OWN_SOCKET)

    def _refusal(self, agent: str, status: int, answer: bytes) -> Exception:
        """The process' own refusal of the values, or a failure."""
        try:
            problem = json.loads(answer)
            detail, field = str(problem["detail"]), str(problem.get("field", ""))
        except (ValueError, TypeError, KeyError):
            return self._failed(agent, f"it answered {status}")
        if status == 422:
            return ProblemError(422, detail, field=field)
        return self._failed(agent, f"it answered {status}: {detail:.300}")

    def _failed(self, agent: str, reason: str) -> OwnProcessError:
        """Let the agent's requests pass by its process for a while."""
        text = f"the agent's network answers in a process of its own, and {reason}"
        if self._failures.get(agent) != text:
            self._notice("own_predictor_failed", agent=agent, reason=reason)
        self._failures[agent] = text
        self._rest_until[agent] = self._clock() + REST_SECONDS
        for _, writer in self._idle.pop(agent, []):
            writer.close()
        return OwnProcessError(text)

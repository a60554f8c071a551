"""The application: the protocol's routes as plain ASGI, which costs a tenth of a framework."""

from __future__ import annotations

import asyncio
import json
import math
import time
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from starlette.types import Receive, Scope, Send

from genesis_fp16.domain.predictor import KnownAgent, PredictorSpec
from genesis_fp16.predictor.documents import openapi
from genesis_fp16.predictor.figures import Figures
from genesis_fp16.predictor.gate import Gate
from genesis_fp16.predictor.journal import Journals
from genesis_fp16.predictor.judge import Judge, Waiting
from genesis_fp16.predictor.models import PublishedModels, ServedModel
from genesis_fp16.predictor.own_process import OwnProcessError, OwnProcesses
from genesis_fp16.predictor.problems import MEDIA_TYPE, ProblemError, wrong
from genesis_fp16.predictor.requests import (
    Choice,
    ChoicesBody,
    DecisionBody,
    JudgeBody,
    OutcomeBody,
    PredictBody,
    RankBody,
    TransitionsBody,
    Values,
    check_values,
    read_body,
)
from infrastructure.agent_contract.agent import AGENT_NAME
from infrastructure.decisions import content_hash
from infrastructure.decisions.intake import transition_body
from infrastructure.options.exploration import Exploration, choose
from infrastructure.world_model.model_files import BuildNetwork

PROTOCOL = "1"
MOST_BODY_BYTES = 4 << 20
LARGE_BYTES = 32 << 10  # of a body whose texts may take long to encode
MOST_LARGE = 64  # such requests at once
_MOST_DISCARDED_BYTES = 64 << 20
_JSON = b"application/json"

Answer = dict[str, Any]
_Handler = Callable[[str, bytes], Awaitable[Answer]]
_Result = TypeVar("_Result")
_Question = TypeVar("_Question", RankBody, DecisionBody)


class App:
    """Answers requests; one instance a process.

    Args:
        spec: What the daemon has told.
        gate: Checks who asks.
        figures: Receives counts.
        clock: Unix time in seconds.
        build_network: Builds the network of `PredictorSpec.own`.
    """

    def __init__(
        self,
        spec: PredictorSpec,
        gate: Gate,
        figures: Figures,
        clock: Callable[[], float] = time.time,
        build_network: BuildNetwork | None = None,
    ) -> None:
        self._agents, self._seed, self._clock = spec.home / "agents", spec.seed, clock
        self._gate, self._figures = gate, figures
        self.models = PublishedModels(
            spec.home, spec.most_models, figures.notice, clock, build_network
        )
        self._own = OwnProcesses(self._agents, figures.notice)
        self._turns = defaultdict[str, _Turn](_Turn)
        self._large = ThreadPoolExecutor(1, "large", partial(torch.set_num_threads, 1))
        self._large_turn, self._large_requests = asyncio.Lock(), 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._judge = Judge(self.models.peek, self._judge_elsewhere)
        self._tasks = set[asyncio.Task[None]]()
        figures.judge = self._judge if spec.own is None else None  # it judges when it is asked
        self.journals = Journals(spec.home, spec.outcome_seconds, clock, self._judge.add)
        self._explore: dict[str, Exploration] = {}
        self.know(spec.agents)
        self._posts: dict[str, _Handler] = {
            "predict": self._predict,
            "rank": self._rank,
            "decisions": self._decide,
            "transitions": self._transitions,
            "choices": self._choices,
        }
        if spec.own is not None:  # the process of all agents records
            self._posts = {
                "predict": self._predict,
                "rank": self._rank,
                "judge": self._judge_here,
            }

    def begin(self) -> None:
        """Have own networks judged from now on; called in the event loop."""
        self._loop = asyncio.get_running_loop()

    def know(self, agents: dict[str, KnownAgent]) -> None:
        """Know these agents, with their exploration; others are known by their folder."""
        explore = {}
        for name, known in agents.items():
            try:
                explore[name] = Exploration.parse(known.explore)
            except ValueError as error:
                self._figures.notice("exploration_refused", agent=name, error=str(error))
                explore[name] = Exploration()
        self._explore = explore
        self._own.without_plugin = frozenset(
            name for name, known in agents.items() if not known.entry_point
        )

    def close(self) -> None:
        """Write what waits and close all files."""
        self._large.shutdown(wait=False, cancel_futures=True)
        self.journals.close()
        self.models.close()
        self._own.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers = {b"genesis-protocol": PROTOCOL.encode()}
        kind = _JSON
        try:
            status, answer = 200, await self._answer(scope, receive)
        except ProblemError as problem:
            status, answer, kind = problem.status, problem.body, MEDIA_TYPE.encode()
            headers |= {name.lower().encode(): v.encode() for name, v in problem.headers.items()}
        except Exception as error:  # a defect of ours costs one request
            self._figures.notice("request_failed", error=repr(error), path=str(scope["path"])[:200])
            defect = ProblemError(500, f"{type(error).__name__}: see the daemon's log")
            status, answer, kind = defect.status, defect.body, MEDIA_TYPE.encode()
        if isinstance(answer, str):
            content, kind = answer.encode(), b"text/plain; charset=utf-8"
        else:
            content = _encode(answer)
        headers |= {b"content-type": kind, b"content-length": b"%d" % len(content)}
        start = {"type": "http.response.start", "status": status, "headers": list(headers.items())}
        await send(start)
        await send({"type": "http.response.body", "body": content})

    async def _answer(self, scope: Scope, receive: Receive) -> Answer | str:
        path, method = scope["path"], scope["method"]
        if path in ("/healthz", "/readyz"):
            return "ok\n"
        sent = {name: value for name, value in scope["headers"] if name in _READ_HEADERS}
        _check_protocol(sent.get(b"genesis-protocol", b"").decode("latin-1"))
        parts = path.split("/")[1:]
        if parts[:2] != ["api", "agents"] or len(parts) not in (4, 6):
            if method != "GET" or path not in ("/openapi.json", "/api/models"):
                raise ProblemError(404, "nothing is here: the API is described at /openapi.json")
            self._gate.check(scope, sent.get(b"authorization"), "read")
            return openapi() if path == "/openapi.json" else self._list_models()
        if method != "POST":
            raise ProblemError(405, f"{method} is not possible here: use POST", headers=_ALLOW)
        self._gate.check(scope, sent.get(b"authorization"), "ask")
        body = await _read(receive)
        if len(body) <= LARGE_BYTES:
            return await self._handle(parts, body)
        if self._large_requests >= MOST_LARGE:
            raise ProblemError(
                503, f"{MOST_LARGE} large requests wait already", headers={"Retry-After": "1"}
            )
        self._large_requests += 1
        try:
            async with self._large_turn:  # only one is parsed: values take many times the bytes
                return await self._handle(parts, body)
        finally:
            self._large_requests -= 1

    async def _handle(self, parts: list[str], body: bytes) -> Answer:
        agent = self._known(parts[2])
        if len(parts) == 6 and parts[3] == "decisions" and parts[5] == "outcome":
            return await self._outcome(agent, parts[4], body)
        handler = self._posts.get(parts[3])
        if handler is None or len(parts) == 6:
            raise ProblemError(404, "nothing is here: the API is described at /openapi.json")
        if parts[3] not in _TIMED:
            return await handler(agent, body)
        return await self._timed(agent, handler, body)

    async def _timed(self, agent: str, handler: _Handler, body: bytes) -> Answer:
        began, outcome = time.perf_counter(), "failed"
        try:
            answer = await handler(agent, body)
            outcome = "no_model" if answer["version"] is None else "model"
        except ProblemError as problem:
            outcome = "refused" if problem.status < 500 else "failed"
            raise
        finally:
            self._figures.prediction(agent, outcome, time.perf_counter() - began)
        return answer

    def _turn(self, agent: str, content: bytes) -> AbstractAsyncContextManager[None]:
        """The agent's turn to compute; a large request takes none, as a thread computes it."""
        return nullcontext() if len(content) > LARGE_BYTES else self._turns[agent]

    async def _run(self, content: bytes, call: Callable[[], _Result]) -> _Result:
        """Call; for a large request in a thread, so that other ones are answered meanwhile."""
        if len(content) <= LARGE_BYTES:
            return call()
        return await asyncio.get_running_loop().run_in_executor(self._large, call)

    async def _predict(self, agent: str, content: bytes) -> Answer:
        async with self._turn(agent, content):
            body = await self._run(content, partial(read_body, PredictBody, content))
            if (body.action is None) == (body.actions is None):
                raise wrong("actions", "send either action or actions")
            actions = body.actions if body.actions is not None else [body.action or {}]
            path = "actions" if body.actions is not None else "action"
            check = partial(_check_question, body.observation, actions, path)
            await self._run(content, check)
            served = await self.models.get(agent)
            if not served.own_network:
                predict = partial(served.predict, body.observation, actions, path)
                return {"agent": agent, **await self._run(content, predict)}
        try:
            return await self._own.predict(agent, body.observation, actions)
        except OwnProcessError as error:
            without = replace(served, problem=str(error))
            return {"agent": agent, **without.predict(body.observation, actions, path)}

    async def _rank(self, agent: str, content: bytes) -> Answer:
        async with self._turn(agent, content):
            body = await self._run(content, partial(_question, RankBody, content))
            served = await self.models.get(agent)
            if not served.own_network:
                rank = partial(served.rank, body.observation, body.actions)
                return {"agent": agent, **await self._run(content, rank)}
        return {"agent": agent, **await self._ranking(served, body, content)}

    async def _ranking(self, served: ServedModel, body: RankBody, content: bytes) -> Answer:
        """Rank, if the model's network is the agent's own, in its process."""
        agent, rank = served.agent, partial(served.rank, body.observation, body.actions)
        if not served.own_network:
            async with self._turn(agent, content):
                return await self._run(content, rank)
        try:
            return await self._own.rank(agent, body.observation, body.actions)
        except OwnProcessError as error:
            return replace(served, problem=str(error)).rank(body.observation, body.actions)

    async def _decide(self, agent: str, content: bytes) -> Answer:
        async with self._turn(agent, content):
            body = await self._run(content, partial(_question, DecisionBody, content))
            if body.deferred:
                raise wrong("deferred", "this version takes no deferred decisions: leave it out")
        name, served = body.id or uuid.uuid4().hex, await self.models.get(agent)
        served.check(body.observation, body.actions)
        sent = content_hash("decision", body.observation, body.actions, body.group)

        async def make() -> dict[str, Any]:
            return self._decision(await self._ranking(served, body, content), agent, name, body)

        async with self.journals.of(agent) as journal:
            answer, repeated = await journal.decide(name, sent, make)
        if not repeated:
            self._figures.recorded(agent, "decision")
        return answer

    def _decision(
        self, ranking: Answer, agent: str, name: str, body: DecisionBody
    ) -> dict[str, Any]:
        """The record of a new decision without its deadline."""
        scores = ranking["improvements"] if None in ranking["chances"] else ranking["chances"]
        explore = self._explore.get(agent, _NO_EXPLORATION)
        order = ranking["order"]
        propensities = explore.propensities(order, None if None in scores else scores)
        chosen = choose(propensities, self._seed, agent, name)
        answer = {
            "agent": agent,
            **ranking,
            "id": name,
            "chosen": chosen,
            "propensity": propensities[chosen],
            "propensities": propensities,
        }
        return {
            "at": self._clock(),
            "group": body.group or name,
            "observation": body.observation,
            "actions": body.actions,
            "chosen": chosen,
            "propensity": propensities[chosen],
            "answer": answer,
        }

    async def _outcome(self, agent: str, name: str, content: bytes) -> Answer:
        began_with = read_body(OutcomeBody, content)
        fields = began_with.model_dump(exclude={"id"})
        if began_with.next_observation is not None:
            check_values("next_observation", began_with.next_observation, may_miss=False)
        served = await self.models.get(agent)
        warnings = served.check_outcome(began_with.next_observation or {}, began_with.reward)
        async with self.journals.of(agent) as journal:
            state = await journal.report(name, began_with.id, fields)
        self._figures.outcome(agent, state)
        return {"id": name, "state": state, "warnings": warnings}

    async def _choices(self, agent: str, content: bytes) -> Answer:
        records = await self._run(content, partial(_choices, content))
        async with self.journals.of(agent) as journal:
            new = await journal.choose(records)
        self._figures.recorded(agent, "choice", new)
        return {"recorded": new, "repeated": len(records) - new}

    async def _transitions(self, agent: str, content: bytes) -> Answer:
        records = await self._run(content, partial(_transitions, content))
        served, warnings = await self.models.get(agent), list[str]()
        for number, record in enumerate(records):
            sent = record["transition"]
            path = f"transitions.{number}."
            warnings += served.check_outcome(sent["next_observation"], sent["reward"], path)
        async with self.journals.of(agent) as journal:
            new = await journal.add(records)
        self._figures.recorded(agent, "transition", new)
        shown = warnings[:_MOST_WARNINGS]
        return {"recorded": new, "repeated": len(records) - new, "warnings": shown}

    async def _judge_here(self, agent: str, content: bytes) -> Answer:
        body = read_body(JudgeBody, content)
        served = await self.models.get(agent)
        for log, record in body.items:
            self._judge.add(agent, Path(log), record)
        judged = self._judge.take().get(agent)
        shown = None if judged is None else judged.model_dump()
        return {"agent": agent, "version": served.version, "warnings": [], "judged": shown}

    def _judge_elsewhere(self, agent: str, waiting: Sequence[Waiting]) -> None:
        """Have an own network judged by its process; called in the thread that reports."""

        async def judge() -> None:
            with suppress(OwnProcessError, ProblemError):  # noticed already
                judged = await self._own.judge(agent, waiting)
                if judged is not None:
                    self._judge.answered(agent, judged)

        def begin() -> None:
            task = asyncio.ensure_future(judge())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(begin)

    def _list_models(self) -> Answer:
        names = set(self._explore) | {path.name for path in _folders(self._agents)}
        models = []
        for name in sorted(names):
            served = self.models.peek(name)
            models.append(
                {
                    "agent": name,
                    "version": served.version if served is not None else None,
                    "loaded": served is not None and served.model is not None,
                    "own_process": served is not None and served.own_network,
                }
            )
        return {"models": models}

    def _known(self, agent: str) -> str:
        is_name = AGENT_NAME.fullmatch(agent) is not None
        if not is_name or not (agent in self._explore or (self._agents / agent).is_dir()):
            raise ProblemError(
                404,
                f"no agent {agent!r:.60} is known: genesis-fp16 agents lists them",
                field="agent",
            )
        return agent


class _Turn:
    """An agent's turn to compute: its requests wait for each other, those of others do not."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> None:
        await self._lock.acquire()
        try:
            await asyncio.sleep(0)  # an agent whose request has arrived, too, takes its turn
        except asyncio.CancelledError:
            self._lock.release()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()


_TIMED = ("predict", "rank", "decisions")
_ALLOW = {"Allow": "POST"}
_READ_HEADERS = (b"genesis-protocol", b"authorization")
_NO_EXPLORATION = Exploration()
_MOST_WARNINGS = 20  # of one request


def _check_question(observation: Values, actions: list[Values], path: str = "actions") -> None:
    check_values("observation", observation)
    for position, action in enumerate(actions):
        check_values(path if path == "action" else f"{path}.{position}", action)


def _question(kind: type[_Question], content: bytes) -> _Question:
    body = read_body(kind, content)
    _check_question(body.observation, body.actions)
    return body


def _transitions(content: bytes) -> list[dict[str, Any]]:
    """Records of the transitions that were sent."""
    records = []
    for number, sent in enumerate(read_body(TransitionsBody, content).transitions):
        path = f"transitions.{number}"
        check_values(f"{path}.observation", sent.observation)
        check_values(f"{path}.action", sent.action)
        check_values(f"{path}.next_observation", sent.next_observation, may_miss=False)
        check_values(f"{path}.info", sent.info)
        fields = transition_body(sent.model_dump(exclude={"id"}))
        content_of = content_hash("transition", fields)
        records.append({"id": sent.id, "content": content_of, "transition": fields})
    return records


def _choices(content: bytes) -> list[dict[str, Any]]:
    """Records of the choices that were sent."""
    return [_choice(*each) for each in enumerate(read_body(ChoicesBody, content).choices)]


def _choice(number: int, choice: Choice) -> dict[str, Any]:
    path = f"choices.{number}"
    check_values(f"{path}.observation", choice.observation)
    for position, action in enumerate(choice.actions):
        check_values(f"{path}.actions.{position}", action)
    if choice.chosen >= len(choice.actions):
        raise wrong(f"{path}.chosen", f"there are {len(choice.actions)} actions, from 0 on")
    fields = choice.model_dump()
    content = content_hash("choice", {**fields, "at": None})
    return {**fields, "group": choice.group or choice.id, "content": content}


def _check_protocol(sent: str) -> None:
    if sent and sent.partition(".")[0] != PROTOCOL:
        raise ProblemError(
            400,
            f"the client speaks version {sent[:20]} of the protocol, this predictor version "
            f"{PROTOCOL}: install the genesis-client of this release",
        )


async def _read(receive: Receive) -> bytes:
    """The whole body; one that is too large is read to its end, so that the client hears of it.

    Raises:
        ProblemError: It is too large, or the connection ended.
    """
    parts, size = list[bytes](), 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ProblemError(400, "the connection ended within the body")
        part = message.get("body", b"")
        size += len(part)
        if size <= MOST_BODY_BYTES:
            parts.append(part)
        else:
            parts.clear()
        if not message.get("more_body") or size > _MOST_DISCARDED_BYTES:
            break
    if size > MOST_BODY_BYTES:
        raise ProblemError(
            413,
            f"the body is larger than {MOST_BODY_BYTES} bytes: send less at a time",
            headers={"Connection": "close"},
        )
    return b"".join(parts)


def _encode(answer: Answer) -> bytes:
    try:
        return json.dumps(answer, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:  # a model may predict what JSON has no number for
        return json.dumps(_finite(answer), separators=(",", ":")).encode()


def _finite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _folders(path: Path) -> list[Path]:
    try:
        return [entry for entry in path.iterdir() if AGENT_NAME.fullmatch(entry.name)]
    except OSError:
        return []

"""Agents take turns: the large requests of one do not hold up those of another."""

import asyncio
import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from genesis_fp16.domain.predictor import PredictorSpec
from genesis_fp16.predictor.app import LARGE_BYTES, MOST_LARGE, App
from genesis_fp16.predictor.figures import Figures
from genesis_fp16.predictor.gate import Gate
from genesis_fp16.system.tokens import Tokens
from tests.genesis_fp16.predictor.conftest import QUESTION, TOOLS, publish


async def rank(app: App, agent: str, question: Mapping[str, Any], answered: list[str]) -> int:
    """Status of the answer; the *agent* is added to those that were *answered*."""
    statuses = list[int]()
    scope = {
        **{"type": "http", "method": "POST", "path": f"/api/agents/{agent}/rank"},
        **{"headers": [], "state": {"listener": "unix"}},
    }

    async def receive() -> Any:
        return {"type": "http.request", "body": json.dumps(question).encode()}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])
            answered.append(agent)

    await app(scope, receive, send)
    return statuses[0]


def app_in(home: Path) -> closing[App]:
    spec = PredictorSpec(parent=None, listeners=(), home=home, most_models=8, outcome_seconds=60.0)
    return closing(App(spec, Gate(Tokens(None, None)), Figures()))


def test_a_request_waits_for_one_of_each_other_agent(
    tmp_path: Path, models: dict[str, Path]
) -> None:
    for name in ("busy", "calm"):
        publish(tmp_path / "agents" / name, models["a"], "run-a")
    large, answered = {**QUESTION, "actions": TOOLS * 333}, list[str]()

    async def ask_at_once(app: App) -> None:
        for name in ("busy", "calm"):
            await rank(app, name, QUESTION, [])  # its model is loaded
        asked = [rank(app, "busy", large, answered) for _ in range(12)]
        asked.append(rank(app, "calm", QUESTION, answered))
        assert await asyncio.gather(*asked) == [200] * 13

    with app_in(tmp_path) as app:
        asyncio.run(ask_at_once(app))
    assert answered.index("calm") < 3
    assert len(answered) == 13


def test_only_so_many_large_requests_wait(tmp_path: Path) -> None:
    (tmp_path / "agents" / "new").mkdir(parents=True)
    large = {**QUESTION, "observation": {"note": "x" * LARGE_BYTES}}

    async def ask_at_once(app: App) -> list[int]:
        asked = [rank(app, "new", large, []) for _ in range(MOST_LARGE + 3)]
        return [*await asyncio.gather(*asked), await rank(app, "new", large, [])]

    with app_in(tmp_path) as app:
        statuses = asyncio.run(ask_at_once(app))
    assert statuses == [200] * MOST_LARGE + [503] * 3 + [200]

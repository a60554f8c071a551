"""Specifications of attempts that executors start; not a test."""

import secrets
from collections.abc import Mapping

from pydantic import JsonValue

from genesis_fp16.domain.attempt import Attempt
from genesis_fp16.domain.run import Run, RunState
from genesis_fp16.domain.run_spec import RunSpec
from genesis_fp16.runs.spec import make_spec
from genesis_fp16.settings import AgentSettings, Settings
from infrastructure.events import PrecisionState

FP32 = PrecisionState(requested="fp16", effective="fp32", reason="flag")
FP16 = PrecisionState(requested="fp16", effective="fp16", reason="default")


def attempt_spec(
    settings: Settings,
    how: Mapping[str, JsonValue] | None = None,
    *,
    run_id: str | None = None,
    number: int = 1,
    precision: PrecisionState = FP16,
    baseline_of: str | None = None,
) -> RunSpec:
    """Specification of an attempt of the agent ``a``, whose folder exists.

    Args:
        how: The agent's own settings, which tell a stand-in worker what to do.
        run_id: Run of the attempt; a new one by default.
    """
    run = Run(
        id=run_id or secrets.token_hex(4),
        agent="a",
        number=1,
        trigger="manual",
        state=RunState.STARTING,
        seed=0,
        due_at=0.0,
        created_at=0.0,
        available_at=0.0,
        baseline_of=baseline_of,
    )
    incarnation = secrets.token_hex(16)
    attempt = Attempt(run_id=run.id, number=number, incarnation=incarnation, started_at=0.0)
    agents = {"a": AgentSettings(settings=dict(how or {}))}
    with_agent = settings.model_copy(update={"agents": agents})
    spec = make_spec(with_agent, run, attempt, "a:A", precision)
    spec.attempt_folder.mkdir(parents=True, exist_ok=True)
    return spec

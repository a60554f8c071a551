"""The conformance kit, on an agent that is right and on each way of being wrong."""

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import structlog
import torch
from torch import nn

from genesis_fp16.testing import AgentCheckError, check_agent
from infrastructure.agent_contract import (
    Evaluation,
    Part,
    Publication,
    Schedule,
    TrainingJob,
    Transition,
)
from infrastructure.agent_contract.agent import InsufficientDataError
from infrastructure.agent_contract.run_context import Budget
from tests.infrastructure.environments.acting_job import drifting, make_job


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class RightAgent:
    name = "right"
    contract_version = 1
    keep_fp32: Sequence[str] = ()

    def schedule(self):
        return Schedule(every_seconds=3600)

    def settings_model(self):
        return None

    def collect(self, context):
        for number in range(10**9):
            yield Transition(group=f"g{number % 5}", observation={"x": float(number)}, action={})

    def model(self) -> nn.Module:
        return nn.Linear(1, 1)

    def loss(self, forward, batch):
        return forward(batch["x"]).square().mean()

    def batches(self, epoch):
        yield {"x": torch.ones(2, 1)}

    def evaluate(self, forward):
        return Evaluation(metrics={"m": 1.0}, primary="m", higher_is_better=True)

    def build_job(self, context, transitions):
        return TrainingJob(
            model=self.model(),
            optimizer=lambda parameters: torch.optim.AdamW(parameters, fused=True),
            batches=self.batches,
            loss=self.loss,
            evaluate=self.evaluate,
            epochs=1,
            keep_fp32=self.keep_fp32,
        )

    def publish(self, context, model, report):
        (context.agent_folder / "model").write_text("kept")
        return Publication(published=True, reason="first", metrics={})


def adapted(agent: RightAgent) -> nn.Module:
    """A frozen base in a half type under a layer that is trained."""
    return nn.Sequential(nn.Linear(1, 1).bfloat16().requires_grad_(False), nn.Linear(1, 1))


def job_of_parts(agent: RightAgent, *parts: tuple[str, str]) -> TrainingJob:
    return TrainingJob(
        model=nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)),
        parts=[
            Part(
                name=name,
                trains=[module],
                optimizer=lambda parameters: torch.optim.AdamW(parameters, fused=True),
                loss=lambda forward, batch, _computed: agent.loss(forward, batch),
            )
            for name, module in parts
        ],
        batches=agent.batches,
        evaluate=agent.evaluate,
        epochs=1,
    )


def two_parts(agent: RightAgent, *_given: object) -> TrainingJob:
    return job_of_parts(agent, ("one", "0"), ("two", "1"))


def shared_parts(agent: RightAgent, *_given: object) -> TrainingJob:
    return job_of_parts(agent, ("one", "0"), ("two", "0"))


def wrong(**members: Any) -> Callable[[], object]:
    return type("WrongAgent", (RightAgent,), members)


class SecretlyHalf(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.culprit = nn.Linear(1, 1)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.culprit(x)


def refuses(self, context, transitions):
    raise InsufficientDataError("groups", 5, 50)


NUMBERS = itertools.count()


def unlike_the_one_before() -> nn.Module:
    model = nn.Linear(1, 1)
    nn.init.constant_(model.weight, next(NUMBERS))
    return model


def without_its_primary_metric(self, forward):
    evaluation = RightAgent.evaluate(self, forward)
    evaluation.metrics.clear()
    return evaluation


WRONG = {
    "primary": (wrong(evaluate=without_its_primary_metric), "'m' as its primary metric"),
    "name": (wrong(name="Wrong Name"), "[a-z][a-z0-9-]{0,31}"),
    "contract": (wrong(contract_version=2), "agent contract 2"),
    "no agent": (dict, "is not an agent"),
    "factory": (lambda: sys.exit(0), "called sys.exit(0)"),
    "schedule": (wrong(schedule=lambda self: "hourly"), "schedule() returned 'hourly'"),
    "cron": (
        wrong(schedule=lambda self: Schedule(cron="99 0 * * *")),
        "schedule(): ValueError",
    ),
    "settings": (wrong(settings_model=lambda self: 3), "not a pydantic model"),
    "nothing": (wrong(collect=lambda self, context: iter(())), "collect() yielded nothing"),
    "rows": (wrong(collect=lambda self, context: iter([{}])), "collect() yielded a dict"),
    "one group": (
        wrong(
            collect=lambda self, context: iter(
                [Transition(group="g", observation={}, action={})] * 3
            )
        ),
        "give each episode",
    ),
    "too little": (wrong(build_job=refuses), "5 groups recorded, 50"),
    "no job": (wrong(build_job=lambda *_: None), "returned a NoneType"),
    "half weights": (wrong(model=lambda self: nn.Linear(1, 1).half()), "weight, bias"),
    "parts that share": (wrong(build_job=shared_parts), "'one' and 'two' both train 0.weight"),
    "half inside": (wrong(model=lambda self: SecretlyHalf()), "culprit"),
    "unknown module": (wrong(keep_fp32=["weigth"]), "keep_fp32 names 'weigth'"),
    "random weights": (
        wrong(model=lambda self: unlike_the_one_before()),
        "different weights",
    ),
    "random batches": (
        wrong(batches=lambda self, epoch: iter([{"x": torch.rand(2, 1)}])),
        "different batches",
    ),
    "no batches": (wrong(batches=lambda self, epoch: iter(())), "yields nothing"),
    "loss": (wrong(loss=lambda *_: torch.ones(())), "an FP32 step"),
    "evaluate": (wrong(evaluate=lambda *_: 0.5), "evaluate() returned 0.5"),
    "publish": (wrong(publish=lambda *_: True), "publish() returned True"),
}


def test_right_agent_passes_and_keeps_its_word_in_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_agent(RightAgent, tmp_path, budget=Budget(seconds=5.0, transitions=20))
    steps = capsys.readouterr().err.splitlines()
    assert "collecting for at most 5 s" in steps[0]
    assert steps[-1].endswith("keeps the contract")
    assert (tmp_path / "agent" / "model").read_text() == "kept"


@pytest.mark.parametrize("case", WRONG)
def test_each_wrong_agent_is_named_with_what_is_wrong(case: str) -> None:
    factory, said = WRONG[case]
    with pytest.raises(AgentCheckError) as caught:
        check_agent(factory, budget=Budget(seconds=5.0, transitions=20))
    assert said in str(caught.value)


def test_error_is_an_assertion() -> None:
    assert issubclass(AgentCheckError, AssertionError)


@pytest.mark.parametrize("members", [{"model": adapted}, {"build_job": two_parts}])
def test_frozen_halves_and_parts_are_right(members, tmp_path):
    check_agent(wrong(**members), tmp_path)


def test_an_environment_that_is_not_deterministic_is_told_and_passes(tmp_path):
    class Acting(RightAgent):
        def collect(self, context):
            return iter(())

        def build_job(self, context, transitions):
            return make_job(tmp_path, drifting, context={"logger": context.logger})

    with structlog.testing.capture_logs() as logs:
        check_agent(Acting, tmp_path)
    told = [entry["event"] for entry in logs if entry["log_level"] == "warning"]
    assert "environment_not_deterministic" in told

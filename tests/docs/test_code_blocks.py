"""The Python in the guides is run, block after block, as a reader would paste it."""

from __future__ import annotations

import ast
import asyncio
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
import torch

from agents.se_darwin_agent import SEDarwinAgent
from infrastructure.agent_contract import Agent, Part, RunContext, Target, TrainingJob
from infrastructure.agent_contract.run_context import Budget
from infrastructure.events import PrecisionState
from infrastructure.training import FP16Trainer, FP16TrainingConfig
from infrastructure.training.loop import LoopOptions, train
from infrastructure.trajectories.schema import target_problem
from tests.infrastructure.training.parts.actor_critic import actor_loss, critic_loss, make_job

DOCS = Path(__file__).parents[2] / "docs"
GUIDE, AUTHORS = DOCS / "tutorials/fp16-training.md", DOCS / "tutorials/writing-an-agent.md"
AGENTS = DOCS / "reference/agents.md"
RECIPES = DOCS / "how-to/training-loop.md"
POLICIES, FLEET = DOCS / "how-to/policies.md", DOCS / "how-to/fleet.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[str, str]]:
    """Place and source of each block of Python in *page*."""
    text = page.read_text()
    places = [(text.count("\n", 0, m.start(1)) + 1, m[1]) for m in BLOCK.finditer(text)]
    return [(f"{page.name}:{line}", "\n" * (line - 1) + source) for line, source in places]


def run(source: str, place: str, names: dict[str, Any]) -> None:
    exec(compile(source, place, "exec"), names)


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, without settings of this machine."""
    monkeypatch.chdir(tmp_path)
    for name in ("GENESIS_ENV_FILE", "GENESIS_HOME", "GENESIS_PRECISION", "ENABLE_FP16_TRAINING"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


def test_the_blocks_of_all_pages_are_python() -> None:
    all_blocks = [block for page in sorted(DOCS.rglob("*.md")) for block in blocks(page)]
    assert len(all_blocks) > 10
    for place, source in all_blocks:
        compile(source, place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.process
def test_the_guide_to_the_trainer_runs(empty_folder: Path) -> None:
    names: dict[str, Any] = {"__name__": "guide"}
    trained = []
    for place, source in [*blocks(GUIDE), *blocks(RECIPES)]:
        run(source, place, names)
        if (trainer := names.get("trainer")) is not None and trainer not in trained:
            trained.append(trainer)
    assert sum(trainer.get_stats()["fp16_steps"] > 0 for trainer in trained) >= 3
    assert names["resumed"].training_steps == 33
    assert names["resumed"].precision == "fp32"
    assert (empty_folder / "checkpoint.pt.json").is_file()


def test_the_agent_of_the_guide_for_authors_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(DOCS.parent / "examples" / "pendulum_agent")
    names: dict[str, Any] = {"__name__": "guide"}
    place, source = blocks(AUTHORS)[0]
    run(source, place, names)
    agent = names["PendulumAgent"]()
    assert isinstance(agent, Agent)
    context = RunContext(
        run_id="run-1",
        attempt=1,
        agent="pendulum",
        device="cpu",
        seed=2**62,
        agent_folder=tmp_path,
        run_folder=tmp_path,
        budget=Budget(seconds=60.0, transitions=250),
        settings=None,
        logger=structlog.get_logger(),
        report_progress=lambda *_, **__: None,
    )
    collected = list(itertools.islice(agent.collect(context), 250))
    assert len({transition.group for transition in collected}) == 2
    assert all(target_problem(agent.spec(), transition) is None for transition in collected)
    for place, source in [*blocks(AUTHORS)[1:], blocks(AGENTS)[1]]:
        run(source, place, names)
    assert {"test_contract", "recorded"} <= names.keys()


def test_the_example_of_a_proposer_repairs() -> None:
    names: dict[str, Any] = {}
    place, source = blocks(AGENTS)[2]
    run(source, place, names)
    agent = SEDarwinAgent(proposers={"recipes": names["make_proposer"]({})})
    context = {"code": "def solve(items):\n    return list(items)\n", "function": "solve"}
    context |= {"tests": [(([2, 1],), [1, 2])], "ranker": "suspicion", "max_evaluations": 300}
    result = asyncio.run(agent.evolve_solution("sort", context))
    assert result["success"]
    assert result["proposers"][1]["proposed"] == 1


def test_the_job_of_several_parts_trains(tmp_path: Path) -> None:
    example = make_job()
    names: dict[str, Any] = {"Part": Part, "Target": Target, "TrainingJob": TrainingJob}
    names |= {"Adam": torch.optim.Adam, "critic_loss": critic_loss, "actor_loss": actor_loss}
    names |= {name: getattr(example, name) for name in ("model", "batches", "evaluate")}
    place, source = blocks(AGENTS)[0]
    run(source, place, names)
    before = {name: weights.clone() for name, weights in names["model"].state_dict().items()}
    result = train(
        names["job"],
        device=torch.device("cpu"),
        precision=PrecisionState(requested="fp32", effective="fp32", reason="default"),
        config=FP16TrainingConfig(),
        options=LoopOptions(seed=3, checkpoint_interval_seconds=3600.0),
        folder=tmp_path,
        emit=lambda _: None,
        commands=list,
    )
    assert result.steps == 9 * (8 + 4 + 4)
    after = names["model"].state_dict()
    assert not any(torch.equal(before[name], after[name]) for name in before)


def test_the_rollout_on_the_page_about_policies_runs() -> None:
    names: dict[str, Any] = {"__name__": "guide"}
    (place, source), *_ = blocks(POLICIES)
    run(source, place, names)
    assert 0 < names["difference_BS"].abs().max() < 0.1


def rows(page: Path, heading: str) -> list[list[str]]:
    """Cells of the first table below *heading* in *page*, without its head."""
    section = page.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    table = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table[2:]]


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_the_docstring_of_the_statistics_explains_each() -> None:
    names: dict[str, Any] = {"__name__": "guide"}
    for place, source in blocks(GUIDE)[:2]:
        run(source, place, names)
    explained = re.findall(r"``(\w+)``", FP16Trainer.get_stats.__doc__ or "")
    assert sorted(explained) == sorted(names["trainer"].get_stats())


def test_every_symptom_has_a_cause_and_a_remedy() -> None:
    table = rows(RECIPES, "Troubleshooting")
    assert len(table) > 8
    assert all(len(row) == 3 and all(row) for row in table)


def test_the_example_of_a_fleet_trains_all_members() -> None:
    names: dict[str, Any] = {}
    for place, source in blocks(FLEET):
        run(source, place, names)
    assert names["failed"] == {}
    assert dict(names["fleet"].alone) == {}

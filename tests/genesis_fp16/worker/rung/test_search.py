"""What a search proposes for a job's code, and what one finds after a part has failed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from genesis_fp16.worker.rung.files import RungFolder
from genesis_fp16.worker.rung.search import part_losses, propose, search_parts
from infrastructure.agent_contract import Evaluation, TrainingJob
from infrastructure.events import EventWriter, Role
from infrastructure.events.event import Finished
from infrastructure.precision_lab.experiments import WorldModelExperiment
from infrastructure.precision_lab.rung import RungRequest
from infrastructure.precision_lab.rung.request import FailedPart
from infrastructure.precision_lab.rung.search import search_rung
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.parts.part_parameters import part_parameters
from infrastructure.training.precision import Precision, PrecisionForward
from infrastructure.training.precision.keep_fp32 import find_modules
from tests.infrastructure.training.parts.actor_critic import PARTS, batches, make_job

CPU = torch.device("cpu")
CONFIG = FP16TrainingConfig(cpu_half=True)


class Large(nn.Module):
    """Overflows in FP16, whatever the loss scale."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = (self.linear(x) + 3) @ torch.full((16, 16), 60000.0) / 60000
        return result


def a_job(middle: nn.Module) -> TrainingJob:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(6)), middle, nn.Linear(16, 1))
    rows = [{"x": torch.randn(8, 16), "y": torch.randn(8, 1)} for _ in range(4)]
    return TrainingJob(
        model=model,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batches=lambda _epoch: rows,
        loss=lambda forward, batch: (forward(batch["x"]) - batch["y"]).square().mean(),
        evaluate=lambda _f: Evaluation(metrics={"a": 0.0}, primary="a", higher_is_better=True),
        epochs=1,
    )


def test_a_proposal_names_the_module_its_cost_and_its_gain() -> None:
    job, before = a_job(Large()), torch.random.get_rng_state()
    found = propose(job, CPU, CONFIG, seconds=60.0, seed=0)
    assert found is not None
    assert found.modules == ("6",)
    assert found.proposal.startswith("keep_fp32=['6']: ")
    assert "of the forward pass's operations in FP32 instead of all" in found.proposal
    assert torch.equal(torch.random.get_rng_state(), before)
    healthy = propose(a_job(nn.Tanh()), CPU, CONFIG, seconds=60.0, seed=0)
    assert healthy is not None
    assert healthy.proposal == ""


@pytest.mark.parametrize("name", ["part:large", "b[0]", "part:b[0]"])
def test_a_module_that_is_named_like_a_part_or_a_pattern_is_a_module(name: str) -> None:
    job = a_job(nn.Tanh())
    *trunk, _, head = job.model.children()
    model = nn.Sequential(*trunk)
    model.add_module(name, Large())
    model.add_module("part:b0", head)
    job = replace(job, model=model)
    found = propose(job, CPU, CONFIG, seconds=60.0, seed=0)
    assert found is not None
    assert (found.modules, found.parts) == ((name,), {})
    kept = replace(job, keep_fp32=found.modules)
    assert list(find_modules(model, kept.kept_modules)) == [name, f"{name}.linear"]
    healthy = propose(kept, CPU, CONFIG, seconds=60.0, seed=0)
    assert healthy is not None
    assert healthy.modules == ()


def test_why_a_search_failed_is_told_in_one_line(tmp_path: Path) -> None:
    folder = RungFolder(tmp_path)
    attempt = folder.spec_path.parent
    attempt.mkdir(parents=True)
    assert folder.failure() == f"no output (see {folder.path / 'search.log'})"
    (folder.path / "search.log").write_text("Fatal Python error\nSegmentation fault\n")
    assert folder.failure().startswith("Segmentation fault (see ")
    error = "a failed while searching: KeyError: 'x'\n\nTip: a long text"
    with EventWriter(attempt / "events.ndjson") as writer:
        writer(Finished(outcome="failed", error=error))
    assert folder.failure().startswith("a failed while searching: KeyError: 'x' (see ")


def test_a_loss_scale_is_proposed_where_it_alone_is_wrong() -> None:
    config = FP16TrainingConfig(cpu_half=True, loss_scale=2.0**40)
    found = propose(a_job(nn.Tanh()), CPU, config, seconds=60.0, seed=0)
    assert found is not None
    assert (found.cause, found.modules) == ("scale", ())
    assert "is too high" in found.proposal


def test_the_loss_of_a_part_comes_after_those_before_it() -> None:
    job, (batch,) = make_job(), batches(1)
    forward = PrecisionForward(job.model, CPU, Precision.FP32)
    each = [
        forward.compute_loss(part_losses(job, part.name, 0).loss({}), batch) for part in job.parts
    ]
    assert torch.allclose(torch.stack(each).sum(), forward.compute_loss(job.loss, batch))
    with pytest.raises(ValueError, match="no part 'gone'"):
        part_losses(job, "gone", 0)


@pytest.mark.parametrize("failed", ["actor", "temperature"])
def test_where_no_module_is_to_blame_the_part_is_found(failed: str) -> None:
    """The actor's own loss is too steep for FP16, or what it hands on to the temperature is inf."""
    [actor] = [part for part in PARTS if part.name == "actor"]

    def faulty(forward: Any, batch: Any, computed: Any) -> Tensor:
        loss = actor.loss(forward, batch, computed)
        if failed == "actor":
            return 1e12 * loss
        far = forward.method("values", 1e5 * batch["observation"], batch["action"])
        computed["entropy"] = 1e-5 * far.mean()
        return loss

    parts = [replace(p, loss=faulty) if p.name == "actor" else p for p in PARTS]
    job = make_job(parts=parts)
    losses = part_losses(job, failed, 0)
    own = part_parameters(job.model, job.parts, job.targets)[failed]
    job.model.requires_grad_(False)
    for parameter in own:
        parameter.requires_grad_(True)
    experiment = WorldModelExperiment(
        models={Role.WORLD_MODEL: job.model}, batches=batches(4, bad=99), loss=losses.loss({})
    )
    request = RungRequest(half="fp16", step=1, raises_modules=False, part=failed)
    found = search_rung(experiment, request, parts=losses)
    assert (found.cause, found.modules) == ("parts", ()), found.reason
    assert found.parts == {"actor": "fp32"}
    assert found.fp32_share is not None
    assert 0 < found.fp32_share <= 0.5
    if failed == "actor":
        job.model.requires_grad_(True)
        proposed = propose(job, CPU, CONFIG, seconds=60.0, seed=0)
        assert proposed is not None
        assert proposed.proposal.startswith("keep_fp32=['part:actor']: ")
    other = search_rung(experiment, replace(request, other_half="bf16"), parts=losses)
    assert (other.cause, other.parts, other.fp32_share) == ("parts", {"actor": "bf16"}, 0.0)
    assert other.reason.startswith("BF16 in part actor suffices: ")
    assert other.proposal == other.reason
    kept = part_losses(replace(job, keep_fp32=("part:actor",)), failed, 0)
    assert "actor" not in kept.names
    healthy = search_rung(replace(experiment, loss=kept.loss({})), request, parts=kept)
    assert healthy.cause == "unexplained", healthy.reason


@pytest.mark.parametrize(
    ("guilty", "count", "other", "cause", "parts", "half"),
    [
        (("critic", "actor"), 3, "bf16", "parts", {"critic": "bf16", "actor": "bf16"}, None),
        (("critic", "actor"), 2, "bf16", "half_type", {}, "bf16"),
        (("critic", "actor"), 3, None, "parts", {}, None),  # FP32 for all costs hardly more
        ((), 3, "bf16", "unexplained", {}, None),
    ],
)
def test_parts_that_failed_together_are_searched_together(
    guilty: tuple[str, ...],
    count: int,
    other: Any,
    cause: str,
    parts: dict[str, str],
    half: str | None,
) -> None:
    def steep(part: Any) -> Any:
        return replace(part, loss=lambda f, b, c: 1e12 * part.loss(f, b, c))

    parts_of_job = PARTS[:count]
    job = make_job(parts=[steep(part) if part.name in guilty else part for part in parts_of_job])
    failed = tuple(FailedPart(name=part.name) for part in parts_of_job)  # healthy ones, too
    request = RungRequest(
        half="fp16", step=1, raises_modules=False, other_half=other, failed=failed
    )
    found = search_parts(job, batches(4, bad=99), request, 0)
    assert (found.cause, found.parts, found.half_type) == (cause, parts, half), found.reason
    if half is None and parts:
        assert found.reason.count(" suffices: ") == len(parts)

"""Which numbers lead to which finding, and that every setting in a remedy exists."""

from __future__ import annotations

import re
from typing import Any

import pytest

from genesis_fp16.domain.profile_verdict import Finding, caveats, judge_profile
from genesis_fp16.settings import AGENTS_PREFIX, VARIABLES, AgentSettings
from infrastructure.events import PrecisionState
from infrastructure.events.profile_report import PhaseCost, ProfileReport, StepCost
from infrastructure.trajectories.record_source.definition import TrainingTable
from infrastructure.world_model_agent import WorldModelAgent

FP32 = PrecisionState(requested="fp16", effective="fp32", reason="no_accelerator")
FP16 = PrecisionState(requested="fp16", effective="fp16", reason="default")
ALONE = StepCost(precision="fp32", seconds=1e-3, fixed_share=0.2)
SLOW_BF16 = StepCost(precision="bf16", seconds=2e-3, ratio=2.0, ratio_error=0.1)
FAST_BF16 = StepCost(precision="bf16", seconds=5e-4, ratio=0.5, ratio_error=0.1)
SETTING = re.compile(r"\bGENESIS_[A-Z0-9_]+")


def cost(phase: str, seconds: float, **fields: Any) -> PhaseCost:
    spent = {"measured": 1, "whole": 1.0, "cpu_seconds": seconds}
    return PhaseCost(phase=phase, wall_seconds=seconds, **{**spent, **fields})


def report(*phases: PhaseCost, **fields: Any) -> ProfileReport:
    """A run of one phase besides *phases* that no rule names."""
    known: dict[str, Any] = {
        "measured_at": 0.0,
        "device": "cpu",
        "device_name": "a CPU",
        "torch_version": "2",
        "threads": 1,
        "precision": FP32,
        "transitions": 12000,
        "collected": 0,
        "rows": 256,
        "parameters": 1000,
        "measured_steps": 100,
        "total_steps": 5000,
        "epochs": 20,
        "bounds": "class",
        "steps": (ALONE, SLOW_BF16),
    }
    spent = sum(phase.wall_seconds for phase in phases)
    rest = cost("first steps", max(0.0, 100.0 - spent))
    return ProfileReport(**{**known, "phases": (*phases, rest), **fields})


def on_gpu(fp32: float, busy: float, **half: Any) -> tuple[StepCost, ...]:
    first = StepCost(precision="fp32", seconds=fp32, busy_share=busy)
    return first, StepCost(precision="fp16", seconds=fp32, busy_share=busy, **half)


STEPS = (cost("forward", 40.0), cost("backward", 42.0), cost("optimizer", 5.0))
CASES = {
    "collecting": (report(cost("collect", 80.0)), "collecting takes 80%", "GENESIS_BUDGET_SECONDS"),
    "waiting": (
        report(cost("collect", 80.0, cpu_seconds=3.0)),
        "waiting",
        "GENESIS_AGENTS__OUR_AGENT__SCHEDULE",
    ),
    "at most": (report(cost("collect", 80.0, at_most=True)), "takes up to 80%", "BUDGET"),
    "start": (report(cost("start", 40.0)), "starting the worker", "set GENESIS_PREWARM=true"),
    "start of a worker that is kept ready": (
        report(cost("start", 40.0), prewarmed=True),
        "cold worker takes 40%",
        "",
    ),
    "encoding": (
        report(cost("read", 10.0), cost("encode", 20.0)),
        "12,000 transitions takes 30% of the run (read 10%, encode 20%)",
        "newest_transitions of its class",
    ),
    "evaluations": (
        report(cost("evaluate", 38.0, measured=20, whole=20.0)),
        "38% of the run: 20 of them, 1.9 s each",
        "epochs of its class (now 20)",
    ),
    "evaluations of a configured agent": (
        report(cost("evaluate", 38.0), bounds="file"),
        "evaluations take 38%",
        "training.epochs in agents.d/our-agent.toml",
    ),
    "evaluations of another job": (
        report(cost("evaluate", 38.0), bounds="job"),
        "evaluations take 38%",
        "epochs of its job",
    ),
    "checkpoints": (
        report(cost("checkpoint", 9.0)),
        "checkpoints take 9%",
        "GENESIS_CHECKPOINT_INTERVAL_SECONDS",
    ),
    "publishing": (report(cost("publish", 30.0)), "decision to publish takes 30%", "newest_trans"),
    "rollouts": (report(cost("rollout", 60.0)), "with the policy takes 60%", "__ROLE_PRECISION"),
    "loop": (report(cost("loop", 20.0)), "loop around", "GENESIS_STATS_INTERVAL_STEPS"),
    "batches": (
        report(cost("batches", 40.0), cost("forward", 20.0)),
        "drawing them takes 67%",
        "batch_size of its class (now 256)",
    ),
    "batches of few transitions": (
        report(cost("batches", 40.0), transitions=2000, rows=150),
        "drawing them takes",
        "record more transitions (a batch, now of 150, is at most an eighth",
    ),
    "batches of another job": (
        report(cost("batches", 40.0), bounds="job"),
        "wait for Python",
        "tensors that are ready",
    ),
    "optimizer": (
        report(cost("optimizer", 25.0), cost("forward", 2.0), bounds="job"),
        "optimizer takes 93%",
        "fused=True",
    ),
    "arithmetic on a CPU": (
        report(*STEPS),
        "94% of a step (20% of them does not depend on the rows); BF16 takes 2.00",
        "training_steps of its class (now 5000)",
    ),
    "half precision that would pay": (
        report(*STEPS, steps=(ALONE, FAST_BF16)),
        "BF16 takes 0.50 of FP32's time",
        "genesis-fp16 preflight our-agent, then set GENESIS_AGENTS__OUR_AGENT__PRECISION=bf16",
    ),
    "launches on a CPU": (
        report(*STEPS, steps=(ALONE.model_copy(update={"fixed_share": 0.8}), SLOW_BF16)),
        "with 2 rows instead of 256, a pass still takes 80%",
        "batch_size of its class (now 256)",
    ),
    "launches for few transitions": (
        report(
            *STEPS,
            transitions=600,
            rows=64,
            steps=(ALONE.model_copy(update={"fixed_share": 0.8}), SLOW_BF16),
        ),
        "a pass still takes 80%",
        "do more in a launch: record more transitions",
    ),
    "launches on a GPU": (
        report(*STEPS, device="cuda", steps=on_gpu(1e-3, 0.1, ratio=1.1), precision=FP16),
        "10% of a step; FP16 takes 1.10",
        "set GENESIS_AGENTS__OUR_AGENT__PRECISION=fp32; or do more in a launch",
    ),
    "half precision that pays": (
        report(
            *STEPS,
            device="cuda",
            steps=on_gpu(1e-2, 0.9, ratio=0.4, cast_share=0.2),
            precision=FP16,
        ),
        "FP16 takes 0.40 of FP32's time, 20%",
        "lower training_steps",
    ),
    "half precision that gains next to nothing": (
        report(*STEPS, device="cuda", steps=on_gpu(1e-2, 0.9, ratio=0.98), precision=FP16),
        "FP16 takes 0.98 of FP32's time",
        "training_steps of its class (now 5000)",
    ),
    "nothing": (report(cost("set up", 1.0)), "no phase stands out", ""),
}


@pytest.mark.parametrize("name", CASES)
def test_the_numbers_lead_to_the_finding(name: str) -> None:
    measured, text, remedy = CASES[name]
    first = judge_profile(measured, "our-agent")[0]
    assert text in first.text
    assert remedy in first.remedy


def test_the_largest_comes_first() -> None:
    findings = judge_profile(report(cost("evaluate", 20.0), cost("collect", 50.0)), "a")
    assert [round(finding.share, 2) for finding in findings] == [0.5, 0.2]


def test_every_setting_that_a_remedy_names_exists() -> None:
    prefix = f"{AGENTS_PREFIX}OUR_AGENT__"
    findings: list[Finding] = [
        finding
        for bounds in ("file", "class", "job")
        for measured, _, _ in CASES.values()
        for finding in judge_profile(measured.model_copy(update={"bounds": bounds}), "our-agent")
    ]
    named = {name for finding in findings for name in SETTING.findall(finding.remedy)}
    of_agent = {name.removeprefix(prefix) for name in named if name.startswith(prefix)}
    assert {"SCHEDULE", "PRECISION"} <= of_agent <= {*map(str.upper, AgentSettings.model_fields)}
    general = {name for name in named if not name.startswith(prefix)}
    assert len(general) > 5
    assert general <= set(VARIABLES)
    attributes = {
        match[1]
        for finding in findings
        for match in re.finditer(r"(\w+) of its class", finding.remedy)
    }
    assert len(attributes) > 3
    assert all(hasattr(WorldModelAgent, name) for name in attributes)
    keys = {
        match[1]
        for finding in findings
        for match in re.finditer(r"training\.(\w+) in agents\.d/our-agent\.toml", finding.remedy)
    }
    assert len(keys) > 3
    assert keys <= set(TrainingTable.model_fields)


def test_what_makes_the_numbers_less_certain_is_named() -> None:
    crowded = cost("forward", 4.0, cpu_seconds=2.0)
    cut = cost("collect", 15.0, at_most=True)
    unknown = cost("loop", 1.0, whole=None)
    notes = list(caveats(report(crowded, cut, unknown, remarks=("publishing was not measured",))))
    for said, note in zip(("is unknown", "15 s", "the CPU", "publishing"), notes, strict=True):
        assert said in note
    assert list(caveats(report())) == []
    (note,) = caveats(report(prewarmed=True))
    assert note.startswith("GENESIS_PREWARM is on")


def test_a_report_survives_json() -> None:
    measured = report(*STEPS)
    assert ProfileReport.model_validate_json(measured.model_dump_json()) == measured
    assert measured.share("forward", "backward") == pytest.approx(0.82)
    assert measured.run_wall_seconds == pytest.approx(100.0)
    assert measured.step_in("fp16") is None

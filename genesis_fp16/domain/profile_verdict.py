"""What a profile says about a run, in words, with the setting to change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from infrastructure.events.precision_state import PrecisionName
from infrastructure.events.profile_report import PhaseCost, ProfileReport, StepCost

COLLECT_SHARE = 0.3
"""Shares of a run's wall time from which a phase is named."""
START_SHARE = 0.25
READ_SHARE = 0.2
EVALUATE_SHARE = 0.15
CHECKPOINT_SHARE = 0.05
LOOP_SHARE = 0.15
PUBLISH_SHARE = 0.2
ROLLOUT_SHARE = 0.3
STEP_SHARE = 0.3
BATCHES_OF_STEP = 0.25
"""Shares of a step's wall time."""
OPTIMIZER_OF_STEP = 0.4
CAST_SHARE = 0.15
FIXED_SHARE = 0.6
"""Share of forward and backward that does not depend on the rows: above it, launches dominate."""
BUSY_SHARE = 0.5
"""Share of the step in which a CUDA device computes: below it, launches dominate."""
WORTHWHILE = 0.97
"""A half type must take at most this much of FP32's time."""
WAITING = 0.5
"""CPU seconds per wall second below which a phase waits more than it computes."""
CROWDED = 1.3
"""Wall seconds per CPU second of a step on one thread from which others use the CPU."""
BATCHES_OF_PASS = 8
TRAINING_SHARE = 0.55
"""A world model's plan takes at least so many batches of the training groups, which hold at least
this share of the transitions; `batch_size` cannot raise a batch above that."""

_STEP = ("forward", "backward", "optimizer", "loss scale")
_WAITS = "most of it waiting: for other processes, a network or a simulator"
_TRAINING_KEYS = {  # attribute of an agent's class -> key in a configured agent's file
    "training_steps": "steps",
    "training_passes": "passes",
    "epochs": "epochs",
    "batch_size": "batch_size",
    "newest_transitions": "newest_transitions",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A finding about where a run's time or memory goes.

    Attributes:
        share: Share of the run that it is about.
        text: What was measured.
        remedy: What to change; empty if nothing.
    """

    share: float
    text: str
    remedy: str = ""


def judge_profile(report: ProfileReport, agent: str) -> list[Finding]:
    """Findings about the run of *agent*, the largest share first.

    What takes the most is said even if nothing can be changed about it.
    """
    findings = [finding for rule in _RULES for finding in rule(report, agent)]
    if not findings:
        largest = max(report.phases, key=lambda phase: phase.run_wall_seconds or 0.0)
        share = report.share(largest.phase)
        text = f"no phase stands out; the largest is {largest.phase} with {share:.0%} of the run"
        return [Finding(share=share, text=text)]
    return sorted(findings, key=lambda finding: -finding.share)


def caveats(report: ProfileReport) -> Iterator[str]:
    """Why the numbers may say less than they seem to."""
    if any(phase.factor is None for phase in report.phases):
        yield (
            "the number of steps of a whole run is unknown, because the job's batches have no "
            "length: give them __len__; what is unknown is not in the shares"
        )
    if report.prewarmed:
        yield (
            "GENESIS_PREWARM is on, so a run of the daemon starts faster than the cold worker that "
            "was measured here"
        )
    collecting = report.phase("collect")
    if collecting is not None and collecting.at_most:
        yield (
            f"collecting was cut off after {collecting.wall_seconds:.0f} s; a run that collects "
            "more may train longer: raise --collect-seconds to measure it"
        )
    steps = [step for step in map(report.phase, _STEP) if step is not None]
    wall = sum(step.wall_seconds for step in steps)
    cpu = sum(step.cpu_seconds for step in steps)
    if report.device == "cpu" and report.threads == 1 and wall > CROWDED * cpu > 0.0:
        yield (
            f"other processes used the CPU: a step took {wall / cpu:.1f} times its CPU time; "
            "compare CPU seconds, or measure again on an idle machine"
        )
    yield from report.remarks


def _collect(report: ProfileReport, agent: str) -> Iterator[Finding]:
    share, cost = report.share("collect"), report.phase("collect")
    if cost is None or share < COLLECT_SHARE:
        return
    most = "up to " if cost.at_most else ""
    does = _WAITS if _waits(cost) else "so the model is not the cost"
    yield Finding(
        share=share,
        text=f"collecting takes {most}{share:.0%} of the run, {does}",
        remedy="bound it with GENESIS_BUDGET_SECONDS or GENESIS_BUDGET_TRANSITIONS, or train more "
        f"rarely with {_setting(agent, 'SCHEDULE')}; no precision makes it faster",
    )


def _start(report: ProfileReport, agent: str) -> Iterator[Finding]:
    share = report.share("start")
    if share >= START_SHARE and report.prewarmed:
        yield Finding(
            share=share,
            text=f"starting a cold worker takes {share:.0%} of what was measured; with "
            "GENESIS_PREWARM a run of the daemon rarely waits for that",
        )
    elif share >= START_SHARE:
        yield Finding(
            share=share,
            text=f"starting the worker (its imports) takes {share:.0%} of the run",
            remedy="set GENESIS_PREWARM=true, which keeps a worker with torch imported ready; or "
            f"train more rarely, on more data, with {_setting(agent, 'SCHEDULE')}",
        )


def _read(report: ProfileReport, agent: str) -> Iterator[Finding]:
    share = report.share("read", "encode", "build")
    if share < READ_SHARE:
        return
    parts = ", ".join(
        f"{name} {report.share(name):.0%}"
        for name in ("read", "encode", "build")
        if report.share(name) >= 0.01
    )
    yield Finding(
        share=share,
        text=f"preparing {report.transitions:,} transitions takes {share:.0%} of the run ({parts})",
        remedy=f"lower {_bound(report, agent, 'newest_transitions')}",
    )


def _evaluations(report: ProfileReport, agent: str) -> Iterator[Finding]:
    share, cost = report.share("evaluate"), report.phase("evaluate")
    if cost is not None and share >= EVALUATE_SHARE:
        yield Finding(
            share=share,
            text=f"evaluations take {share:.0%} of the run: {report.epochs} of them, "
            f"{cost.wall_seconds / cost.measured:.2g} s each",
            remedy=f"lower {_bound(report, agent, 'epochs')} (now {report.epochs})",
        )


def _checkpoints(report: ProfileReport, _agent: str) -> Iterator[Finding]:
    share, cost = report.share("checkpoint"), report.phase("checkpoint")
    if cost is not None and share >= CHECKPOINT_SHARE:
        yield Finding(
            share=share,
            text=f"checkpoints take {share:.0%} of the run, "
            f"{cost.wall_seconds / cost.measured:.2g} s each",
            remedy="raise GENESIS_CHECKPOINT_INTERVAL_SECONDS; a crash then loses more",
        )


def _publishing(report: ProfileReport, agent: str) -> Iterator[Finding]:
    share = report.share("publish")
    if share >= PUBLISH_SHARE:
        yield Finding(
            share=share,
            text=f"the decision to publish takes {share:.0%} of the run: the linear model is "
            "fitted, and all candidates are tested on held-out groups",
            remedy=f"lower {_bound(report, agent, 'newest_transitions')}",
        )


def _rollouts(report: ProfileReport, agent: str) -> Iterator[Finding]:
    share = report.share("rollout")
    if share >= ROLLOUT_SHARE:
        yield Finding(
            share=share,
            text=f"generating with the policy takes {share:.0%} of the run",
            remedy=f"{_setting(agent, 'ROLE_PRECISION')} chooses the rollout's precision; "
            "see docs/how-to/policies.md",
        )


def _loop(report: ProfileReport, _agent: str) -> Iterator[Finding]:
    share = report.share("statistics", "loop")
    if share >= LOOP_SHARE:
        yield Finding(
            share=share,
            text=f"the loop around the steps (statistics, boundary) takes {share:.0%} of the run",
            remedy="raise GENESIS_STATS_INTERVAL_STEPS; in half precision also "
            "GENESIS_BASELINE_INTERVAL_STEPS and GENESIS_TELEMETRY_INTERVAL_STEPS",
        )


def _batches(report: ProfileReport, agent: str) -> Iterator[Finding]:
    of_step, share = _of_step(report, "batches"), report.share("batches")
    if of_step >= BATCHES_OF_STEP and share >= EVALUATE_SHARE:
        yield Finding(
            share=share,
            text=f"batches wait for Python: drawing them takes {of_step:.0%} of a step and "
            f"{share:.0%} of the run",
            remedy="make them from tensors that are ready, not from single rows"
            if report.bounds == "job"
            else f"{_larger_batch(report, agent)} and lower "
            f"{_bound(report, agent, 'training_steps')}",
        )


def _step(report: ProfileReport, agent: str) -> Iterator[Finding]:
    """One finding about the step: what bounds it, and whether half precision pays."""
    share = report.share(*_STEP)
    now = report.step_in(_effective(report))
    if share < STEP_SHARE or now is None:
        return
    text, remedies = f"the steps take {share:.0%} of the run", []
    fewer = f"{_bound(report, agent, 'training_steps')} (now {report.total_steps or 'unknown'})"
    if launches := _launches(now, report):
        text += f" and are bound by launches: {launches}"
        remedies.append(f"do more in a launch: {_larger_batch(report, agent)} and lower {fewer}")
        if now.busy_share is not None:
            remedies.append("set GENESIS_CUDA_GRAPH=true")
    else:
        dense = _of_step(report, "forward", "backward")
        text += f" and compute: forward and backward are {dense:.0%} of a step"
        if now.fixed_share is not None:
            text += f" ({now.fixed_share:.0%} of them does not depend on the rows)"
        remedies.append(f"lower {fewer}")
    half_text, half_remedy = _half(report, agent)
    if half_remedy:
        remedies.insert(0, half_remedy)
    yield Finding(share=share, text=f"{text}; {half_text}", remedy="; or ".join(remedies))


def _half(report: ProfileReport, agent: str) -> tuple[str, str]:
    """What half precision does to the step, and the change of precision that follows."""
    half = next((step for step in report.steps if step.ratio is not None), None)
    if half is None or half.ratio is None:
        return "no half type was measured on this device", ""
    name, error = half.precision, half.ratio_error or 0.0
    pays, is_slower = half.ratio + error <= WORTHWHILE, half.ratio - error > 1.0
    text = f"{name.upper()} takes {half.ratio:.2f} of FP32's time"
    if half.cast_share >= CAST_SHARE:
        text += f", {half.cast_share:.0%} of it in casts"
    setting = f"set {_setting(agent, 'PRECISION')}"
    if _effective(report) == "fp32":
        check = f"check the accuracy with genesis-fp16 preflight {agent}, then {setting}={name}"
        return (text, check) if pays else (f"{text}, so FP32 is right", "")
    return text, f"{setting}=fp32" if is_slower else ""


def _effective(report: ProfileReport) -> PrecisionName:
    effective = report.precision.effective
    return "fp32" if effective == "auto" else effective


def _launches(step: StepCost, report: ProfileReport) -> str:
    """How launches dominate *step*; empty if they do not."""
    if step.busy_share is not None:
        busy = step.busy_share
        return f"the device computes in {busy:.0%} of a step" if busy < BUSY_SHARE else ""
    fixed = step.fixed_share
    if fixed is None or fixed < FIXED_SHARE:
        return ""
    return f"with 2 rows instead of {report.rows}, a pass still takes {fixed:.0%} of its time"


def _optimizer(report: ProfileReport, _agent: str) -> Iterator[Finding]:
    of_step, share = _of_step(report, "optimizer"), report.share("optimizer")
    if report.bounds == "job" and of_step >= OPTIMIZER_OF_STEP and share >= EVALUATE_SHARE:
        yield Finding(
            share=share,
            text=f"the optimizer takes {of_step:.0%} of a step and {share:.0%} of the run",
            remedy="build torch's AdamW, Adam, SGD or Adagrad with fused=True in the job",
        )


_RULES: tuple[Callable[[ProfileReport, str], Iterator[Finding]], ...] = (
    _collect,
    _start,
    _read,
    _evaluations,
    _checkpoints,
    _publishing,
    _rollouts,
    _loop,
    _batches,
    _step,
    _optimizer,
)


def _of_step(report: ProfileReport, *phases: str) -> float:
    """Share of *phases* in a step with its batch."""
    whole = report.share(*_STEP, "batches")
    return report.share(*phases) / whole if whole > 0.0 else 0.0


def _waits(cost: PhaseCost) -> bool:
    return cost.cpu_seconds < WAITING * cost.wall_seconds


def _setting(agent: str, name: str) -> str:
    """Variable of one agent."""
    return f"GENESIS_AGENTS__{agent.upper().replace('-', '_')}__{name}"


def _larger_batch(report: ProfileReport, agent: str) -> str:
    """How to put more rows into a step."""
    if (
        report.bounds != "job"
        and report.rows * BATCHES_OF_PASS >= TRAINING_SHARE * report.transitions
    ):
        return (
            f"record more transitions (a batch, now of {report.rows}, is at most an eighth of "
            "those in training groups)"
        )
    return f"raise {_bound(report, agent, 'batch_size')} (now {report.rows})"


def _bound(report: ProfileReport, agent: str, attribute: str) -> str:
    """Where a bound of the run is set."""
    if report.bounds == "file":
        return f"training.{_TRAINING_KEYS[attribute]} in agents.d/{agent}.toml"
    if report.bounds == "class":
        return f"{attribute} of its class"
    return f"{attribute.removeprefix('training_').replace('_', ' ')} of its job"

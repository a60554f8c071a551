"""Time, memory and host reads of the training step, with the cases of the step benchmark."""

from __future__ import annotations

from benchmarks.gpu.claims import claims_of
from benchmarks.gpu.section import Task
from benchmarks.measuring.machine import describe
from benchmarks.measuring.spread import Spread
from benchmarks.step import report
from benchmarks.step.cases import list_cases, list_comparisons
from benchmarks.step.figures import count_naive_reads
from benchmarks.step.loops import Requested
from benchmarks.step.measure import measure
from benchmarks.step.models import SIZES
from benchmarks.step.results import Case, Comparison, Figure, Measured, Results

_LOOPS = ("textbook", "ours")  # the others are for CPUs: `make bench-step`
_ROUNDS = {"tiny": 15, "small": 15, "medium": 12, "large": 8}
_QUICK_ROUNDS = 2
_NAIVE_READS = 3
_GRAPH_LIMITS = {"small": 0.25, "medium": 0.5}
_MEMORY_LIMIT = 0.60


def run(task: Task) -> None:
    """Measure the size that the section is named after, and decide its claims."""
    name = task.name.removeprefix("steps-")
    if not task.on_cuda and name not in ("tiny", "small"):
        for claim in claims_of(task.name):
            task.findings.cannot(claim.name, f"{name} is too large for a CPU")
        return
    cases = [case for case in list_cases([name]) if case.loop in _LOOPS]
    rounds = _QUICK_ROUNDS if task.quick else _ROUNDS[name]
    results = measure(SIZES[name], cases, task.device, rounds=rounds, seed=0)
    figures = [
        comparison.measure(results)
        for comparison in list_comparisons([name], task.device)
        if comparison.numerator in results and comparison.denominator in results
    ]
    task.findings.show(
        report.format_steps(results.values(), describe(task.device))
        + "\n\n"
        + report.format_figures(figures)
    )
    _DECIDE[name](task, results)


def _decide_tiny(task: Task, results: Results) -> None:
    figure = Comparison(
        numerator=_ours("tiny", "fp16", graph=True),
        denominator=_ours("tiny", "fp16"),
        compares="loops",
    ).measure(results)
    _decide_ratios(task, "graph-helps-tiny", [figure])


def _decide_small(task: Task, results: Results) -> None:
    reads = {
        str(case): result.host_reads
        for case, result in results.items()
        if isinstance(result, Measured) and case.loop == "ours"
    }
    naive = count_naive_reads(task.device, seed=0)
    task.findings.decide(
        "reads",
        holds=bool(reads) and max(reads.values()) == 0 and naive == _NAIVE_READS,
        measured=f"{', '.join(f'{case}: {count:g}' for case, count in reads.items())}; "
        f"naive fp16: {naive:g}",
        naive=naive,
        **reads,
    )
    _decide_graph(task, results, "small")


def _decide_medium(task: Task, results: Results) -> None:
    _decide_graph(task, results, "medium")


def _decide_large(task: Task, results: Results) -> None:
    full: tuple[Requested, ...] = ("fp32", "tf32")
    half: tuple[Requested, ...] = ("fp16", "bf16")
    figures = [
        Comparison(
            numerator=_ours("large", one), denominator=_ours("large", other), compares="precisions"
        ).measure(results)
        for one in half
        for other in full
    ]
    _decide_ratios(task, "half-faster-large", figures)
    memory = Comparison(
        numerator=_ours("large", "fp16"),
        denominator=_ours("large", "fp32"),
        compares="precisions",
        at_most=_MEMORY_LIMIT,
        quantity="memory",
    ).measure(results)
    _decide_limit(task, "memory-large", memory)


_DECIDE = {
    "tiny": _decide_tiny,
    "small": _decide_small,
    "medium": _decide_medium,
    "large": _decide_large,
}


def _decide_graph(task: Task, results: Results, size: str) -> None:
    figure = Comparison(
        numerator=_ours(size, "fp16", graph=True),
        denominator=Case(size=size, loop="textbook", precision="fp32"),
        compares="precisions",
        at_most=_GRAPH_LIMITS[size],
    ).measure(results)
    _decide_limit(task, f"graph-{size}", figure)


def _ours(size: str, precision: Requested, *, graph: bool = False) -> Case:
    mode = "graph" if graph else "eager"
    return Case(size=size, loop="ours", precision=precision, mode=mode)  # type: ignore[arg-type]


def _decide_limit(task: Task, claim: str, figure: Figure) -> None:
    """The median decides."""
    if figure.spread is None:
        task.findings.cannot(claim, figure.reason)
        return
    task.findings.decide(
        claim,
        holds=figure.verdict == "pass",
        measured=f"{figure.what}: {_text(figure.spread)}, limit {figure.at_most}",
        ratio=figure.spread.median,
    )


def _decide_ratios(task: Task, claim: str, figures: list[Figure]) -> None:
    """The upper quartiles of all must be below 1."""
    spreads = {figure.what: figure.spread for figure in figures if figure.spread is not None}
    if len(spreads) < len(figures):
        reasons = (figure.reason for figure in figures if figure.spread is None)
        task.findings.cannot(claim, "; ".join(dict.fromkeys(reasons)))
        return
    task.findings.decide(
        claim,
        holds=all(spread.high < 1.0 for spread in spreads.values()),
        measured="; ".join(f"{what}: {_text(spread)}" for what, spread in spreads.items()),
        **{what: spread.median for what, spread in spreads.items()},
    )


def _text(spread: Spread) -> str:
    return f"{spread.median:.3g} (quartiles {spread.low:.3g} to {spread.high:.3g})"

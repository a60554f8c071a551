"""``python -m benchmarks.fleet``: what training many small models in one step saves."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from benchmarks.fleet.loops import CPU, BareKernels, InAFleet, Loop, OneByOne, WithVmap
from benchmarks.fleet.models import Subject, subjects
from benchmarks.fleet.other_checkout import UNCOUNTED_STEPS, OtherCheckout
from benchmarks.measuring.machine import describe
from benchmarks.measuring.spread import Spread
from benchmarks.measuring.table import write_csv
from benchmarks.measuring.timing import interleave, seconds_of
from infrastructure.training import Precision

OUTPUT = Path("benchmark_results")
_OTHER = "one by one in the other checkout"
_WARM_UP_STEPS = 3  # the first makes the optimizers' state, the second moves it into the stacks
_COLUMNS = ("model", "batch", "precision", "members", "versus", "low", "median", "high", "target")


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """A loop's processor time divided by the fleet's.

    Attributes:
        versus: The loop.
        ratio: Its time divided by the fleet's, over all rounds.
        target: Ratio that is aimed at; None for none.
    """

    versus: str
    ratio: Spread
    target: float | None


def measure(
    subject: Subject,
    members: int,
    precision: Precision,
    *,
    rounds: int,
    steps: int,
    other: Path | None = None,
) -> list[Comparison]:
    """Time a fleet of *members* beside the other loops, a block of *steps* each per round.

    Every loop takes `UNCOUNTED_STEPS` before each of its blocks.

    Args:
        other: Another checkout, whose trainers are stepped one by one in a process of their own;
            None for none.

    Raises:
        RuntimeError: A member of the fleet differs in a bit from the same training alone.
    """
    alone = OneByOne(subject, members, precision)
    together = InAFleet(subject, members, precision)
    loops: dict[str, Loop] = {"one by one": alone, "fleet": together}
    if subject.is_plain and precision is Precision.FP32:
        loops["torch.vmap"] = WithVmap(subject, members)
        loops["bare kernels"] = BareKernels(subject, members)
    for loop in loops.values():
        _run(loop, _WARM_UP_STEPS)

    def block(loop: Loop) -> Callable[[], float]:
        def seconds() -> float:
            _run(loop, UNCOUNTED_STEPS)
            return seconds_of(partial(_run, loop, steps), CPU)

        return seconds

    blocks = {name: block(loop) for name, loop in loops.items()}
    with ExitStack() as processes:
        if other is not None:
            checkout = OtherCheckout(other, (subject.name, subject.rows), members, precision)
            processes.enter_context(checkout)
            blocks[_OTHER] = partial(checkout.seconds, steps)
        costs = interleave(blocks, rounds, seed=0)
    together.require_together()
    require_equal(alone, together)
    targets = {"one by one": subject.target, "torch.vmap": 1.1, _OTHER: subject.target}
    return [
        Comparison(
            versus=name,
            ratio=Spread.of([cost[name] / cost["fleet"] for cost in costs]),
            target=targets.get(name) if precision is Precision.FP32 else None,
        )
        for name in blocks
        if name != "fleet"
    ]


def _run(loop: Loop, steps: int) -> None:
    for _ in range(steps):
        loop.step()


def require_equal(alone: OneByOne, together: InAFleet) -> None:
    """Compare the weights of all members.

    Raises:
        RuntimeError: A bit differs.
    """
    for i, (one, other) in enumerate(zip(alone.trainers, together.trainers, strict=True)):
        pairs = zip(one.model.parameters(), other.model.parameters(), strict=True)
        if not all(torch.equal(first, second) for first, second in pairs):
            raise RuntimeError(f"member {i} differs from the same training alone")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write ``fleet.csv``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__)
    parser.add_argument("--members", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--steps", type=int, default=8, help="steps in a timed block")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder of fleet.csv")
    parser.add_argument(
        "--other",
        type=Path,
        metavar="FOLDER",
        help="a checkout of another commit, whose trainers are measured as well",
    )
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    precision = Precision(options.precision)
    print(f"{describe(CPU)['device']}, {options.members} members, {precision}, one thread")
    rows = []
    for subject in subjects():
        gains = measure(
            subject,
            options.members,
            precision,
            rounds=options.rounds,
            steps=options.steps,
            other=options.other,
        )
        for gain in gains:
            ratio = gain.ratio
            aim = "" if gain.target is None else f", target {gain.target}"
            print(
                f"{subject.name}, batch {subject.rows}: {ratio.median:.2f} times as fast as "
                f"{gain.versus} (quartiles {ratio.low:.2f} to {ratio.high:.2f}{aim})",
                flush=True,
            )
            rows.append(
                {
                    "model": subject.name,
                    "batch": str(subject.rows),
                    "precision": precision.value,
                    "members": str(options.members),
                    "versus": gain.versus,
                    "low": f"{ratio.low:.3f}",
                    "median": f"{ratio.median:.3f}",
                    "high": f"{ratio.high:.3f}",
                    "target": "" if gain.target is None else str(gain.target),
                }
            )
    print("all members have the bits of the same trainings alone")
    write_csv(options.output / "fleet.csv", rows, _COLUMNS)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

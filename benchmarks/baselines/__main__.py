"""``python -m benchmarks.baselines``: find out how often a run must be repeated in FP32.

``measure`` trains SE-Darwin and the example agent pendulum in FP16 and in FP32 on a CPU, on the
same data with the same seed. ``simulate`` lets the guard decide on the measured pairs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from statistics import fmean, stdev

from benchmarks.baselines.noticing import HEALTHY_RUNS, Noticing, simulate
from benchmarks.baselines.pairs import MeasuredPair, measure_pairs, read_pairs, write_pairs
from infrastructure.world_model_agent import WorldModelAgent

MEASURED = Path(__file__).with_name("pairs.csv")
EXAMPLES = Path(__file__).parents[2] / "examples" / "pendulum_agent"
EVERY_RUNS = (3, 4, 5, 6, 10)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure pairs and write them to the file, or print what the guard makes of them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.baselines", description=__doc__)
    parser.add_argument("what", choices=("measure", "simulate"))
    parser.add_argument("--pairs", type=int, default=16, help="pairs to measure of each agent")
    parser.add_argument("--agents", type=int, default=200, help="agents to simulate")
    parser.add_argument("--file", type=Path, default=MEASURED, help="CSV file of the pairs")
    options = parser.parse_args(arguments)
    if options.what == "measure":
        write_pairs(options.file, _measure(options.pairs))
        return 0
    pairs = read_pairs(options.file)
    for agent in sorted({pair.agent for pair in pairs}):
        own = [pair for pair in pairs if pair.agent == agent]
        print(format_pairs(own))
        for limit in (0.02, 0.01):
            for every_runs in EVERY_RUNS:
                found = simulate(
                    own, every_runs=every_runs, limit=limit, agents=options.agents, seed=0
                )
                print(format_noticing(found), flush=True)
    return 0


def _measure(count: int) -> list[MeasuredPair]:
    sys.path.append(str(EXAMPLES))
    from agents.se_darwin_agent import SEDarwinAgent

    pairs = []
    pendulum: type[WorldModelAgent] = import_module("pendulum_agent").PendulumAgent
    plans = ((pendulum, 8000), (SEDarwinAgent, 2500))
    for agent, transitions in plans:
        for pair in measure_pairs(
            agent, range(count), precision="fp16", transitions=transitions, steps=400
        ):
            print(pair, flush=True)
            pairs.append(pair)
    return pairs


def format_pairs(pairs: Sequence[MeasuredPair]) -> str:
    """Return one line about the pairs of one agent: number, spread, cost of a repetition."""
    worse = [pair.pair.worse_by for pair in pairs]
    cost = sum(pair.fp32_seconds for pair in pairs) / sum(pair.half_seconds for pair in pairs)
    return (
        f"{pairs[0].agent}: {len(pairs)} pairs, {pairs[0].metric} worse by {fmean(worse):.4%} on "
        f"average, standard deviation {stdev(worse):.4%}, largest {max(map(abs, worse)):.4%}; an "
        f"FP32 training took {cost:.2f} times an FP16 one on this CPU"
    )


def format_noticing(found: Noticing) -> str:
    """Return one line about one setting."""
    return (
        f"  limit {found.limit:.0%}, every {found.every_runs} runs: noticed within 20 runs "
        f"{found.within_20_runs:.1%}; 95 % after {found.runs or 'over 40 pairs'} runs, "
        f"{found.late_runs or 'over 40 pairs'} if it begins late; false alarms in "
        f"{HEALTHY_RUNS} runs {found.false_alarms:.1%}"
    )


if __name__ == "__main__":
    raise SystemExit(main())

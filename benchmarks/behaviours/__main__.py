"""``python -m benchmarks.behaviours``: print what goes wrong in which loop, in a few seconds."""

from __future__ import annotations

import logging
import sys
import warnings

import structlog
import torch

from benchmarks.behaviours.cases import CASES, wrong_in
from benchmarks.behaviours.loops import LOOPS, Setup


def main() -> int:
    """Print each case with the loops in which it goes wrong; 1 if one of them is ours."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of the peers
    logging.disable()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    loops = {}
    for name, begin in LOOPS.items():
        try:
            begin(Setup())
        except ImportError as error:
            print(f"{name} is left out: {error}; run: make everything")
        else:
            loops[name] = begin
    ours = 0
    for case in CASES:
        print(f"\n{(case.__doc__ or '').strip()}")
        for name, begin in loops.items():
            wrong = wrong_in(case, begin)
            ours += bool(wrong) and name == "FP16Trainer"
            print(f"  {name:15} {wrong or 'right'}", flush=True)
    return min(ours, 1)


if __name__ == "__main__":
    sys.exit(main())

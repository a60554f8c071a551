"""Repeat frozen completions under a preset and measure what differs from FP32.

The flags are those of document 004; ``genesis-fp16 lab`` does the work.
"""

import argparse
import sys
from collections.abc import Sequence

from genesis_fp16.cli import main


def command(arguments: Sequence[str] | None = None) -> list[str]:
    """*arguments* as a command of ``genesis-fp16 lab``."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--precision_config", default="all", help="name of a preset, or all")
    parser.add_argument("--trajectories_dir", default="results/frozen_trajectories")
    parser.add_argument("--output_dir", default="results")
    for name in ("--base_model", "--seed"):
        parser.add_argument(name, help="without effect: the frozen folder holds weights and seeds")
    given = parser.parse_args(arguments)
    replay = ["replay", given.trajectories_dir, "--preset", given.precision_config]
    return [*replay, "--output", given.output_dir]


if __name__ == "__main__":
    sys.argv = ["genesis-fp16", "lab", *command()]
    main()

"""Repeat the trainings of a sweep that failed.

The flags are those of document 004; ``genesis-fp16 lab`` does the work.
"""

import argparse
import sys
from collections.abc import Sequence

from genesis_fp16.cli import main


def command(arguments: Sequence[str] | None = None) -> list[str]:
    """*arguments* as a command of ``genesis-fp16 lab``."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--config", nargs="+", required=True, help="names of presets")
    parser.add_argument("--seed", type=int, nargs="+", default=[0])
    parser.add_argument("--max_steps", type=int, default=120, help="optimizer updates of a cell")
    parser.add_argument("--batch_size", type=int, help="completions of a round")
    parser.add_argument("--base_model", default="small", help="folder of a model, or small")
    parser.add_argument("--output_dir", default="results")
    given = parser.parse_args(arguments)
    sweep = ["sweep", "--repeat-failed", "--updates", str(given.max_steps)]
    sweep += ["--base-model", given.base_model, "--output", given.output_dir]
    for seed in given.seed:
        sweep += ["--seed", str(seed)]
    for preset in given.config:
        sweep += ["--preset", preset]
    if given.batch_size is not None:
        sweep += ["--batch-size", str(given.batch_size)]
    return sweep


if __name__ == "__main__":
    sys.argv = ["genesis-fp16", "lab", *command()]
    main()

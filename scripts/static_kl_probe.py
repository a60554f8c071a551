"""Compare one forward pass in FP32 with the same in BF16 and FP16, and draw it.

The flags are those of document 004; ``genesis-fp16 lab`` does the work.
"""

import argparse
import sys
from collections.abc import Sequence

from genesis_fp16.cli import main


def commands(arguments: Sequence[str] | None = None) -> list[list[str]]:
    """*arguments* as commands of ``genesis-fp16 lab``."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--base_model", default="small", help="folder of a model, or small")
    parser.add_argument("--num_prompts", type=int, default=8)
    parser.add_argument("--seq_lengths", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.5, 1.0])
    parser.add_argument("--output_dir", default="results")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    compare = ["compare", "--base-model", given.base_model, "--prompts", str(given.num_prompts)]
    for length in given.seq_lengths:
        compare += ["--length", str(length)]
    for temperature in given.temperatures:
        compare += ["--temperature", str(temperature)]
    compare += ["--output", given.output_dir, "--seed", str(given.seed)]
    return [compare, ["report", given.output_dir]]


if __name__ == "__main__":
    for command in commands():
        sys.argv = ["genesis-fp16", "lab", *command]
        try:
            main()
        except SystemExit as ended:
            if ended.code:
                raise

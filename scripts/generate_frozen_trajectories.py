"""Freeze completions of a policy, with everything that a repetition needs.

The flags are those of document 004; ``genesis-fp16 lab`` does the work.
"""

import argparse
import sys
from collections.abc import Sequence

from genesis_fp16.cli import main


def command(arguments: Sequence[str] | None = None) -> list[str]:
    """*arguments* as a command of ``genesis-fp16 lab``."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--base_model", default="small", help="folder of a model, or small")
    parser.add_argument("--num_batches", type=int, default=4)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--max_gen_length", type=int, default=32, help="tokens of a completion")
    parser.add_argument("--output_dir", default="results/frozen_trajectories", help="a new folder")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    freeze = ["freeze", given.output_dir, "--base-model", given.base_model]
    freeze += ["--batches", str(given.num_batches), "--batch-size", str(given.batch_size)]
    freeze += ["--max-new-tokens", str(given.max_gen_length), "--seed", str(given.seed)]
    return freeze


if __name__ == "__main__":
    sys.argv = ["genesis-fp16", "lab", *command()]
    main()

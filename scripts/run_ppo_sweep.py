"""Train a policy by PPO under one preset from one seed.

The flags are those of document 004; ``genesis-fp16 lab`` does the work.
"""

import argparse
import sys
from collections.abc import Sequence

from genesis_fp16.cli import main


def command(arguments: Sequence[str] | None = None) -> list[str]:
    """*arguments* as a command of ``genesis-fp16 lab``."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--precision_config", default="bf16_pure", help="name of a preset")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max_steps", type=int, default=120, help="optimizer updates of a cell")
    parser.add_argument("--batch_size", type=int, help="completions of a round")
    parser.add_argument("--base_model", default="small", help="folder of a model, or small")
    parser.add_argument("--output_dir", default="results")
    parser.add_argument("--checkpoint_path", help="folder of the FP32 model to begin with")
    parser.add_argument("--use_synthetic_reward", action="store_true", help="the task's own score")
    given = parser.parse_args(arguments)
    cell = ["ppo-sweep", given.precision_config, "--seed", str(given.seed)]
    cell += ["--updates", str(given.max_steps), "--base-model"]
    cell += [given.checkpoint_path or given.base_model]
    cell += ["--output", given.output_dir]
    if given.batch_size is not None:
        cell += ["--batch-size", str(given.batch_size)]
    return cell + ["--task-reward"] * given.use_synthetic_reward


if __name__ == "__main__":
    sys.argv = ["genesis-fp16", "lab", *command()]
    main()

"""What each of two ranks does in `test_distributed.py`: a program for torchrun, not a test.

``scenarios FOLDER NAME...`` runs the named scenarios one after the other, since a process pays
seconds for its imports, and writes what each returns to ``FOLDER/NAME-RANK.json``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from infrastructure.training.distributed import process_group
from tests.infrastructure.training.distributed.scenarios import checkpoints, loop, policies, steps
from tests.infrastructure.training.distributed.scenarios.registry import SCENARIOS
from tests.infrastructure.training.distributed.scenarios.trainers import CPU

SUBJECTS = (steps, checkpoints, loop, policies)  # their scenarios are known once they are imported


def main() -> None:
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    torch.set_num_threads(1)
    with process_group(CPU):
        for name in names:
            result = SCENARIOS[name](folder)
            (folder / f"{name}-{dist.get_rank()}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()

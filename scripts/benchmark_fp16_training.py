"""Compare FP16 with FP32 on the scenarios warmup, standard, stress; ``--help`` lists options."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # benchmarks/ is not installed

from benchmarks.scenarios.__main__ import main

if __name__ == "__main__":
    raise SystemExit(main())

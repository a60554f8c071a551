"""FP32 beside FP16 on the scenarios warmup, standard and stress; ``--help`` lists the options."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # benchmarks/ is not installed

from benchmarks.scenarios.__main__ import main

if __name__ == "__main__":
    raise SystemExit(main())

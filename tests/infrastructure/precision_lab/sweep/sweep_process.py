"""A sweep in a process of its own: ``python -P -m``, presets and settings as JSON, a folder."""

import json
import sys
from pathlib import Path

from infrastructure.precision_lab.ppo import CellSettings
from infrastructure.precision_lab.sweep import SweepPlan, run_sweep

if __name__ == "__main__":
    presets, settings = json.loads(sys.argv[1])
    plan = SweepPlan(presets=tuple(presets), seeds=(0,), settings=CellSettings(**settings))
    sys.exit(run_sweep(plan, Path(sys.argv[2])).interrupted)

"""A sweep: one training for each preset and seed, resumable after a kill, each cell compared.

`SweepPlan` lists the cells; `run_sweep` trains those that have not ended, in a pool of processes.
"""

from infrastructure.precision_lab.sweep.cell_run import RefusedError
from infrastructure.precision_lab.sweep.plan import Cell, ForeignFolderError, SweepPlan
from infrastructure.precision_lab.sweep.sweep import SweepResult, cells_to_run, run_sweep

__all__ = [
    "Cell",
    "ForeignFolderError",
    "RefusedError",
    "SweepPlan",
    "SweepResult",
    "cells_to_run",
    "run_sweep",
]

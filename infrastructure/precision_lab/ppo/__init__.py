"""PPO of a small policy under any preset, also those without FP32 weights: a cell of a sweep.

`prepare` makes the FP32 weights that all cells of a seed begin with, and `PPOCell` trains them.
"""

from infrastructure.precision_lab.ppo.cell import PPOCell
from infrastructure.precision_lab.ppo.initial_weights import CellModels, load, prepare, save
from infrastructure.precision_lab.ppo.settings import CellSettings

__all__ = ["CellModels", "CellSettings", "PPOCell", "load", "prepare", "save"]

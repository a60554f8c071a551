"""Repeats an experiment under presets, by the roles that a training uses, and measures the error.

A result is one JSON object a preset, in ``replay/<preset>.json`` of the output folder.
"""

from infrastructure.precision_lab.replay.preset_kernels import PresetKernels
from infrastructure.precision_lab.replay.replay import (
    ALL,
    Replay,
    chosen_presets,
    replay_folder,
    replay_under,
)

__all__ = [
    "ALL",
    "PresetKernels",
    "Replay",
    "chosen_presets",
    "replay_folder",
    "replay_under",
]

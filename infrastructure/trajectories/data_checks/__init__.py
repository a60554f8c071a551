"""Checks of recorded data before training: what would make a held-out score look too good.

Pure functions of transitions and their split; they import no torch and change nothing.
"""

from infrastructure.trajectories.data_checks.checks import check_data
from infrastructure.trajectories.data_checks.finding import Finding

__all__ = ["Finding", "check_data"]

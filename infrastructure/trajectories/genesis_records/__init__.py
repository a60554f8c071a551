"""Genesis' own records as transitions; whatever tells the outcome is named and left out.

Each adapter has a ``SPEC`` for a world model, a ``LEFT_OUT`` that maps every field it does not
use to the reason, and a reader that skips what is damaged and says where.
"""

from infrastructure.trajectories.genesis_records.casebank import read_casebank
from infrastructure.trajectories.genesis_records.replay_trajectories import (
    read_replay_trajectories,
)
from infrastructure.trajectories.genesis_records.trajectory_pool import read_trajectory_pool

__all__ = ["read_casebank", "read_replay_trajectories", "read_trajectory_pool"]

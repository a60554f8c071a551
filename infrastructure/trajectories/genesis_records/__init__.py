"""Genesis' own records as transitions; fields that reveal the outcome are named and excluded.

Each adapter has a ``SPEC``, a reader that skips and reports what is damaged, and in
``EXCLUDED_FIELDS`` the reason why each unused field is excluded.
"""

from infrastructure.trajectories.genesis_records.casebank import read_casebank
from infrastructure.trajectories.genesis_records.replay_trajectories import (
    read_replay_trajectories,
)
from infrastructure.trajectories.genesis_records.trajectory_pool import read_trajectory_pool

__all__ = ["read_casebank", "read_replay_trajectories", "read_trajectory_pool"]

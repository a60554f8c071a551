"""The prior that ships with SE-Darwin: its files, and the command that builds them.

`infrastructure.world_model_agent.prior` writes and reads them.
"""

from pathlib import Path

PRIOR_FOLDER = Path(__file__).parent
"""Folder of the prior; it is installed with the package."""

__all__ = ["PRIOR_FOLDER"]

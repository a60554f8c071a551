"""Asks the predictor of a genesis-fp16 daemon, and reports what happened: `Agent`.

Needs the standard library only, and Python 3.9 or newer on a Unix system.
"""

from genesis_client.agent import Agent
from genesis_client.answers import Decision, Ranking
from genesis_client.sender import Status

__version__ = "0.2.0"
__all__ = ["Agent", "Decision", "Ranking", "Status"]

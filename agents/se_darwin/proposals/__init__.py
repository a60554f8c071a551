"""Candidates that proposers write: taken in, compared with the program, and shared out."""

from agents.se_darwin.proposals.desk import Proposals
from agents.se_darwin.proposals.loading import load_proposers
from agents.se_darwin.proposals.shares import ProposerReport

__all__ = ["Proposals", "ProposerReport", "load_proposers"]

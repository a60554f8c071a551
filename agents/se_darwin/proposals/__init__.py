"""Candidates that proposers write: taken in, compared with the program, and shared out."""

from agents.se_darwin.proposals.desk import Proposals
from agents.se_darwin.proposals.loading import load_proposers
from agents.se_darwin.proposals.shares import EDITS, ProposerReport

__all__ = ["EDITS", "Proposals", "ProposerReport", "load_proposers"]

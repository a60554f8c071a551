"""Faults like those that people make; most are not the inverse of one of the agent's edits."""

from agents.se_darwin.faults.draw import Fault, draw_faults

__all__ = ["Fault", "draw_faults"]

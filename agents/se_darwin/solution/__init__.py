"""Request and result of `SEDarwinAgent.evolve_solution`, and the recording of what it ran."""

from agents.se_darwin.solution.evolved_program import EvolvedProgram
from agents.se_darwin.solution.recording import Recording
from agents.se_darwin.solution.request import EvolutionRequest

__all__ = ["EvolutionRequest", "EvolvedProgram", "Recording"]

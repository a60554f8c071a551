"""What an edit would change in the values at its place, before any candidate is run."""

from agents.se_darwin.effects.effect import Effect, weigh
from agents.se_darwin.effects.measurement import MAX_SECONDS, measure_effects

__all__ = ["MAX_SECONDS", "Effect", "measure_effects", "weigh"]

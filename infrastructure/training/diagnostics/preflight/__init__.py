"""Measurements of a training job before it trains, and the precision they recommend."""

from infrastructure.training.diagnostics.preflight.preflight import preflight

__all__ = ["preflight"]

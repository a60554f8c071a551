"""Measurements of a training job before it trains, and the precision to choose by them."""

from infrastructure.training.diagnostics.preflight.preflight import preflight

__all__ = ["preflight"]

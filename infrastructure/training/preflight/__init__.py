"""Measurements of a training job before it trains, and the precision to choose by them."""

from infrastructure.training.preflight.preflight import preflight

__all__ = ["preflight"]

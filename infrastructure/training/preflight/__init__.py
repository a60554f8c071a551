"""Measurements of a training job before it trains."""

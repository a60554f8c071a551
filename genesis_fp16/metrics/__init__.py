"""The daemon's Prometheus metrics: their declarations, and the listener that updates them."""

from genesis_fp16.metrics.feed import Metrics

__all__ = ["Metrics"]

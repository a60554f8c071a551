"""Every metric of the daemon: what there is, and what feeds it."""

from genesis_fp16.metrics.feed import Metrics

__all__ = ["Metrics"]

"""The search, beside a training in FP32, for the modules that must be in it; see `RungSearch`.

`RungSearch` freezes the training and starts a process of its own, which does `search`.
"""

from genesis_fp16.worker.rung.observer import RungSearch

__all__ = ["RungSearch"]

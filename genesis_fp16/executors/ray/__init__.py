"""Ray: one Ray job per attempt, through the REST API of Ray Jobs.

The standard library speaks HTTP well enough for six requests, so the daemon's machine does not
need the package ``ray``: 240 MB, in the version of the cluster.
"""

from genesis_fp16.executors.ray.engine import RayEngine

__all__ = ["RayEngine"]

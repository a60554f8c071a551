"""Predictors on machines without the daemon: models and outcomes travel through a bucket.

The daemon writes ``models.json`` and the files that it names, and fetches outcomes; a
``predict-server`` does the reverse. Objects are whole and written once, so that each side may be
killed at any point and repeat what it did.
"""

from genesis_fp16.daemon.predictors_elsewhere.daemon_side import DaemonSide
from genesis_fp16.daemon.predictors_elsewhere.repeated import Repeated
from genesis_fp16.daemon.predictors_elsewhere.server_side import ServerSide

__all__ = ["DaemonSide", "Repeated", "ServerSide"]

"""Attempts whose machines share an object store with the daemon, not a folder.

An `AttemptMirror` keeps an attempt's local folder and its objects alike; all else reads files.
"""

from genesis_fp16.executors.object_store.mirror import AttemptMirror
from genesis_fp16.executors.object_store.mirrors import Mirrors

__all__ = ["AttemptMirror", "Mirrors"]

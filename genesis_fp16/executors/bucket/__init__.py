"""Attempts whose machines share a bucket with the daemon, not a folder.

An `AttemptMirror` keeps an attempt's local folder and its objects alike; all else reads files.
"""

from genesis_fp16.executors.bucket.mirror import AttemptMirror
from genesis_fp16.executors.bucket.mirrors import Mirrors

__all__ = ["AttemptMirror", "Mirrors"]

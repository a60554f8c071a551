"""Copies a home and its database while a daemon serves, checks the copy, and puts it back.

`files` copies the folder, `database` the database, `backup` both together.
"""

from genesis_fp16.daemon.backup.backup import BackupError, Facts, back_up, restore

__all__ = ["BackupError", "Facts", "back_up", "restore"]

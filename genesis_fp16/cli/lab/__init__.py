"""``genesis-fp16 lab``: the precision lab. Every command imports what it needs when called.

`commands` lists the commands; each module beside it has one of them, or two that share options.
"""

from genesis_fp16.cli.lab.commands import app

__all__ = ["app"]

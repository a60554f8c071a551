"""``genesis-fp16 attach`` and ``detach``: a checkout of Genesis and a home that learns from it.

`checkout` reads its code and its records, and runs neither; `attachment` writes what is ours, and
takes it back; `commands` has the two commands.
"""

from genesis_fp16.cli.attach.commands import attach, detach

__all__ = ["attach", "detach"]

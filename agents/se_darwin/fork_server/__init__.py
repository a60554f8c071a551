"""Code that runs inside the fork server, a bare interpreter: no third-party import, no agent code.

The interpreter imports this room as a top-level package, so its imports are relative.
"""

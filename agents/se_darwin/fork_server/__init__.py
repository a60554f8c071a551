"""Code inside the fork server, a bare interpreter; it imports the standard library only.

The interpreter imports this folder as a top-level package, so the imports here are relative.
"""

"""What runs inside the fork server: the standard library and these modules, nothing else.

Imported as a top-level package of a bare interpreter, hence the relative imports here.
"""

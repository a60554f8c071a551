"""The daemon. Its own process imports neither torch nor plugin code."""

__version__ = "0.2.0"

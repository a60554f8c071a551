"""The guard and the precision flag, tried on the real daemon: ``python -m benchmarks.guard``."""

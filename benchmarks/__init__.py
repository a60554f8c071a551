"""Benchmarks: `step`, `scenarios`, `shadow`, `guard`, `se_darwin`; each runs by ``python -m``."""

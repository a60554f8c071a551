"""Benchmarks, each run by ``python -m``: `step`, `scenarios`, `shadow`, `telemetry`, `guard` ..."""

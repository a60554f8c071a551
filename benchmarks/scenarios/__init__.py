"""Whole trainings in half precision beside FP32: ``python -m benchmarks.scenarios``."""

"""Diagnostics: anomaly origin, FP32 shadow, FP32 check, profiler, pre-flight."""

"""Precision: its resolution, the forward pass under it, the live switch, FP32 masters."""

"""Precision faults planted into models, and how often a search finds them.

`python -m benchmarks.precision_lab planted` compares `bisect` with flipping one place at a time.
"""

"""What the training step costs, beside hand-written loops and other trainers.

``python -m benchmarks.step`` measures and holds the results to the limits in `limits`.
"""

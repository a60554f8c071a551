"""What the training step costs, beside hand-written loops and other trainers.

``python -m benchmarks.step`` measures it and checks the figures against their limits.
"""

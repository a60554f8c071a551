"""All eighteen agents of Genesis side by side: speed, memory, accuracy, and the cost of a round.

Run it by ``python -m benchmarks.agents``.
"""

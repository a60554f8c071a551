"""What a run costs besides learning: data, batches, evaluations, statistics, publication.

``python -m benchmarks.run`` measures it with the pendulum agent and SE-Darwin.
"""

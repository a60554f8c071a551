"""``python -m benchmarks.se_darwin``: does the world model save SE-Darwin executions?"""

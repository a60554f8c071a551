"""``python -m benchmarks.se_darwin``: how many executions the world model saves SE-Darwin."""

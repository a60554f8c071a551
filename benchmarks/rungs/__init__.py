"""The guard's ladder: its search alone, and whole trainings under it, on planted faults."""

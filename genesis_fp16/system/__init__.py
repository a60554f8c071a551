"""What touches the operating system and knows nothing of runs: processes, signals, JSON text."""

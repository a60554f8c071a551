"""Process trees, signals, JSON text: the operating system's side; knows nothing of runs."""

"""How far held-out metrics of paired runs differ by chance, and how fast a true loss is noticed."""

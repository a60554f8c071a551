"""The training loop: epochs, step boundary, statistics, divergence, held-out evaluation."""

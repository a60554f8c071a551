"""What the start of a run costs, from its specification to the first training step."""

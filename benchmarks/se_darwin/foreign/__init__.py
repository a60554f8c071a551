"""Bugs that nobody here wrote, and the repairs that the real `evolve_solution` finds for them."""

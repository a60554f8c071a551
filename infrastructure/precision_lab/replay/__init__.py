"""Repeats an experiment under presets, by the roles that a training uses."""

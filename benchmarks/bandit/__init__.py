"""Contextual bandits: what estimates and choices are worth."""

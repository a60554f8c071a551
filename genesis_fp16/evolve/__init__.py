"""Repair of a user's own function by an agent in a child process."""

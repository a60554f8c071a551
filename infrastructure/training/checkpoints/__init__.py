"""Checkpoints: atomic, hashed, weights_only, portable across precisions and ranks."""

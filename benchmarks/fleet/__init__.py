"""Fleets beside the same trainings one after the other, and beside ``torch.vmap``."""

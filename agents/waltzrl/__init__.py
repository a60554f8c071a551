"""WaltzRL: rewards of the pair, recorded conversations, a synthetic safety game, its training.

This package imports nothing; the agents are in the modules beside it that have its name.
"""

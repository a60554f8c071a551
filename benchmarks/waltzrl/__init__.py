"""What WaltzRL's two stages are worth on the synthetic safety game.

Run it by ``python -m benchmarks.waltzrl``.
"""

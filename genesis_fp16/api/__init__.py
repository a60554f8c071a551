"""The control API and its page: a process of its own, which the daemon starts when one asks.

It reads the home and the store as commands do, and changes them through the same functions.
"""

from genesis_fp16.system.own_distribution import own_distribution_first

own_distribution_first()

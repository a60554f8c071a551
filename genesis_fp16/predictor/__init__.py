"""The predictor: a process that answers running agents with the models that are published.

It serves networks of the library in FP32, runs no plugin code, and appends what it acknowledges to
the agents' logs of decisions. No other room imports it: the daemon starts it by name.
"""

from genesis_fp16.system.own_distribution import own_distribution_first

own_distribution_first()

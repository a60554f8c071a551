"""The child process of one attempt: collect, train, evaluate, publish."""

from genesis_fp16.system.own_distribution import own_distribution_first

own_distribution_first()

"""The command line: one module for each group of commands."""

from genesis_fp16.system.own_distribution import own_distribution_first

own_distribution_first()

from genesis_fp16.cli.program import main

__all__ = ["main"]

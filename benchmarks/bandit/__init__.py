"""Contextual bandits: our loop beside Vowpal Wabbit and epsilon-greedy logistic regression.

A classification set becomes a bandit (Bietti et al., arXiv:1802.04064): each row is shown once, an
action is a class, and only the reward of the chosen one is revealed: 1 if it is the row's class.
"""

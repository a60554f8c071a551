"""A small language model that learns checkable tasks from reward: tasks, job, published files.

This package imports nothing; the agent is `agents.policy_agent.PolicyAgent`.
"""

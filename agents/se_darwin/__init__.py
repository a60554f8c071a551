"""SE-Darwin: program repair by evolutionary search in a sandbox, ranked by a world model.

This package imports nothing; the agent is `agents.se_darwin_agent.SEDarwinAgent`.
"""

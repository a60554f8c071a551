"""SE-Darwin: program repair by evolution, in a jail, ranked by a world model.

Nothing is imported here: the agent is `agents.se_darwin_agent.SEDarwinAgent`.
"""

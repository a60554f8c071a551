"""A synthetic safety game whose best play is known: prompts, a rule-based judge, its words.

The conversation agent answers prompts of three words; the feedback agent reads prompt and reply.
"""

"""How far a policy's rollout and trainer disagree in each precision, and what it comes from.

`subjects` makes the model and its prompts, `scores` computes log-probabilities and keeps them,
`mismatch_table` and `factorial` compare them.
"""

"""Conversations without labels: what is there, what is missing, and labels by a rule.

`conversation_files` reads Genesis' files, `refusal_rule` judges a reply, `command` has the command.
"""

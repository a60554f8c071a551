"""The command ``genesis-fp16 evolve``: repairs a user's own function in a child process."""

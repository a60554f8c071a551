"""The child process of one attempt: collect, train, evaluate, publish."""

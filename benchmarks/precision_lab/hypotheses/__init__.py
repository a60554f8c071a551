"""The four hypotheses of document 004, each by experiments that change one thing."""

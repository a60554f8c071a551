"""All that leans on private parts of torch: a module for each subject, each with its own check.

Where this torch lacks a part or fails its check, a documented path replaces it or an error says so.
"""

"""World models beside what a person would take instead, on data sets that nobody here made.

The data comes with packages from PyPI and with gymnasium's environments; nothing is downloaded.
"""

"""The error of a measurement that cannot be made here."""


class NotRunError(RuntimeError):
    """Something cannot be measured here; the message is the reason and goes into the results."""

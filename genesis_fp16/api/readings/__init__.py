"""What the API and the page show, read from the home and the store when it is asked for."""

from genesis_fp16.api.readings.readings import Readings

__all__ = ["Readings"]

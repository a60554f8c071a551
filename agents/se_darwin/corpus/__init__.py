"""Pure functions, most of the standard library, each with a generator of inputs."""

from agents.se_darwin.corpus.subject import Subject, load_subjects

__all__ = ["Subject", "load_subjects"]

"""Runs candidates in a jail, judges nothing by what they say about themselves."""

from agents.se_darwin.sandbox.exam import Exam, ExamError
from agents.se_darwin.sandbox.execution import Execution, Limits, Output, TestCase
from agents.se_darwin.sandbox.sandbox import Sandbox
from agents.se_darwin.sandbox.unavailable import SandboxUnavailableError

__all__ = [
    "Exam",
    "ExamError",
    "Execution",
    "Limits",
    "Output",
    "Sandbox",
    "SandboxUnavailableError",
    "TestCase",
]

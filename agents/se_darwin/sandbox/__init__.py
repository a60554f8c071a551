"""The sandbox's host side: runs candidates and compares their results, which it never trusts."""

from agents.se_darwin.sandbox.execution import Execution, Limits, Output, TestCase
from agents.se_darwin.sandbox.found_tests import PytestSuiteError
from agents.se_darwin.sandbox.pytest_suite import (
    ProgramSources,
    PytestSuite,
    TestSources,
)
from agents.se_darwin.sandbox.sandbox import Sandbox
from agents.se_darwin.sandbox.server_process import SandboxUnavailableError

__all__ = [
    "Execution",
    "Limits",
    "Output",
    "ProgramSources",
    "PytestSuite",
    "PytestSuiteError",
    "Sandbox",
    "SandboxUnavailableError",
    "TestCase",
    "TestSources",
]

from __future__ import annotations

import pytest
from pydantic import ValidationError

from agents.se_darwin.sandbox import PytestSuiteError, Sandbox
from agents.se_darwin.solution.request import EvolutionRequest

CODE = "def solve(x):\n    return x"


def test_modules_that_the_function_does_without_may_be_missing() -> None:
    code = f"""
import sys
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import pandas
try:
    import numpy
except ImportError:
    numpy = None
if sys.version_info < (3,):
    import urlparse
else:
    from urllib.parse import urlparse
def plot():
    import nowhere_2
{CODE}
"""
    request = {"code": code, "function": "solve", "tests": [((1,), 1)]}
    assert EvolutionRequest.model_validate(request).function == "solve"
    with pytest.raises(ValidationError, match="imports nowhere_2"):
        EvolutionRequest.model_validate(request | {"function": "plot"})


def test_imports_that_fail_in_the_sandbox_do_not_end_it() -> None:
    code = f"""
try:
    from .fast import solve
except ImportError:
    pass
try:
    import this_module_is_nowhere
except ImportError:
    pass
{CODE}
"""
    request = EvolutionRequest.model_validate(
        {"code": code, "function": "solve", "tests": [((1,), 1)]}
    )
    with request.sandbox() as sandbox:
        assert request.task(sandbox, 5.0).tests


def test_an_installed_copy_of_the_package_does_not_replace_the_function() -> None:
    """Its compiled functions would; here `rich` of the environment stands for such a copy."""
    package = "try:\n    from rich.markup import escape as solve\n"
    package += "except ImportError:\n    from rich.own import solve\n"
    request = EvolutionRequest(
        code=CODE,
        module="rich.own",
        own_modules={"rich.__init__": package},
        function="solve",
        test_code="from rich import solve\ndef test_a():\n    assert solve(1) == 2\n",
    )
    with request.sandbox() as sandbox:
        assert request.task(sandbox, 5.0).check_names == ["test_a, line 3"]


def test_a_package_may_be_the_program(sandbox: Sandbox) -> None:
    tests = "import shop\nfrom shop.tax import rate\n"
    tests += "def test_a():\n    assert shop.solve(rate) == shop.__version__\n"
    request = EvolutionRequest(
        code=f"from .tax import rate\nfrom . import tax\n__version__ = 3\n{CODE} + tax.rate",
        module="shop",
        function="solve",
        own_modules={"shop.tax": "rate = 1"},
        test_code=tests,
    )
    task = request.task(sandbox, 5.0)
    [given] = task.evaluate(sandbox, [(frozenset(), task.space.source)])
    assert given.symptoms == ("number one less",)


@pytest.mark.process
def test_installed_packages_can_be_imported() -> None:
    tests = """
import packaging.version
from helper import expected
from program import solve
def test_a():
    assert solve("1.2") == expected
    assert packaging.version.Version("1.2").major == solve("1.2")
"""
    request = EvolutionRequest.model_validate(
        {
            "code": "import numpy\nfrom packaging.version import Version\n"
            "def solve(x):\n    return int(numpy.sum([Version(x).major]))\n",
            "function": "solve",
            "test_code": tests,
            "test_helpers": {"helper": "expected = 1"},
        }
    )
    with request.sandbox() as sandbox:
        task = request.task(sandbox, 5.0)
        [given] = task.evaluate(sandbox, [(frozenset(), task.space.source)])
    assert given.fixed


@pytest.mark.process
def test_parts_of_packages_that_are_imported_by_name_or_when_first_read_are_there() -> None:
    tests = """
from unittest import mock
from pydantic import ValidationError
from program import Order, solve
def test_a():
    called = mock.Mock(return_value=2)
    assert solve(called()) == 2
def test_b():
    assert Order(number=1).number == solve(1)
def test_c():
    try:
        Order(number="x")
    except ValidationError as error:
        assert solve(error.error_count()) == 1
"""
    code = "from pydantic import BaseModel\nclass Order(BaseModel):\n    number: int\n" + CODE
    request = EvolutionRequest(code=code, function="solve", test_code=tests)
    with request.sandbox() as sandbox:
        task = request.task(sandbox, 5.0)
        [given] = task.evaluate(sandbox, [(frozenset(), task.space.source)])
    assert given.fixed


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("import program, nowhere_1", "nowhere_1"),
        ("from program import solve\nfrom . import other", r"\.other"),
        ("from p import program, other", r"p\.other"),
    ],
)
def test_what_tests_import_and_nobody_has_is_named(line: str, name: str) -> None:
    tests = f"{line}\nimport program\ndef test_a(): program.solve(1)"
    request = EvolutionRequest.model_validate(
        {"code": CODE, "function": "solve", "test_code": tests}
    )
    with pytest.raises(PytestSuiteError, match=f"import {name}:"):
        request.sandbox()

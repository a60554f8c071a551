from benchmarks.se_darwin.foreign.doctest_tests import doctest_module, read_examples

DOCSTRING = """Halves.

>>> from math import inf
>>> half(4)
2
>>> half('a')
Traceback (most recent call last):
    ...
TypeError: no number
>>> half(5)  # doctest: +SKIP
7
>>> half(6)
<Fraction>
>>> third(9)
3
>>> half(8) == 4
True
"""


def test_literal_results_and_exceptions_become_checks() -> None:
    examples = read_examples(DOCSTRING, "half")
    checks = [index for index, example in enumerate(examples) if example.is_check]

    assert [examples[index].code for index in checks] == ["half(4)", "half('a')", "half(8) == 4"]
    assert doctest_module("half", examples, checks, {"half"}) == (
        "import pytest\nfrom program import half\n\n\ndef test_half():\n"
        "    from math import inf\n    assert half(4) == 2\n    assert half(8) == 4\n\n\n"
        "def test_half_2():\n    from math import inf\n    with pytest.raises(TypeError):\n"
        "        half('a')\n"
    )


def test_broken_docstrings_have_no_examples() -> None:
    assert read_examples(">>> half(\n", "half") == []

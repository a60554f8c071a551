"""Every claim is in its document, and something decides it."""

import re
from importlib import import_module

import pytest

from benchmarks.gpu.claims import CLAIMS, ROOT, Claim
from benchmarks.gpu.plan import SECTIONS
from benchmarks.gpu.sections.cuda_tests import TESTS

_CUDA_TEST = re.compile(r"^@pytest\.mark\.cuda\n(?:@.*\n|[ \)].*\n)*def (test_\w+)", re.MULTILINE)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_the_document_says_it(claim: Claim) -> None:
    assert claim.line() > 0


def test_a_claim_that_no_document_makes_is_an_error() -> None:
    claim = Claim(name="a", section="fleet", document="README.md", quote="no such words", test="")
    with pytest.raises(ValueError, match=r"README\.md .*'no such words'"):
        claim.line()


def test_each_section_has_claims_and_a_module() -> None:
    assert len({claim.name for claim in CLAIMS}) == len(CLAIMS)
    assert {claim.section for claim in CLAIMS} == {section.name for section in SECTIONS}
    for module in {section.module for section in SECTIONS}:
        assert callable(import_module(module).run)


def test_each_test_of_the_library_on_cuda_decides_a_claim() -> None:
    found = {
        f"{path.relative_to(ROOT)}::{name}"
        for path in (ROOT / "tests" / "infrastructure").rglob("test_*.py")
        for name in _CUDA_TEST.findall(path.read_text())
    }
    assert found == set(TESTS.values())
    assert set(TESTS) <= {claim.name for claim in CLAIMS}

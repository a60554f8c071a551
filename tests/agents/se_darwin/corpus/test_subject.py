from __future__ import annotations

import ast
from random import Random

from agents.se_darwin.corpus import load_subjects


def test_the_corpus_is_wide_enough_to_hold_modules_out() -> None:
    subjects = load_subjects()
    assert len(subjects) >= 250
    assert len({subject.module for subject in subjects}) >= 50
    assert len({subject.name for subject in subjects}) == len(subjects)


def test_inputs_are_literals_and_repeat_with_the_seed() -> None:
    for subject in load_subjects():
        drawn = [[subject.generate(rng) for _ in range(5)] for rng in (Random(3), Random(3))]
        assert drawn[0] == drawn[1], subject.name
        assert ast.literal_eval(repr(drawn[0])) == drawn[0], subject.name


def test_sources_carry_no_documentation_that_would_tell_the_answer() -> None:
    for subject in load_subjects():
        [definition] = ast.parse(subject.source).body
        assert isinstance(definition, ast.FunctionDef)
        assert definition.name == subject.function
        assert definition.decorator_list == []
        if len(definition.body) > 1:
            assert ast.get_docstring(definition) is None, subject.name

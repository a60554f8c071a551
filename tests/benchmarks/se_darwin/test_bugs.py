from benchmarks.se_darwin.bugs import fold_modules, handwritten_bugs


def test_every_handwritten_bug_fails_a_test_and_hidden_tests_differ(caching_sandbox):
    bugs = handwritten_bugs(caching_sandbox, seed=0)
    assert 10 <= len(bugs) <= 20
    assert len({bug.module for bug in bugs}) == len(bugs)
    for bug in bugs:
        assert bug.task.hidden_tests
        visible = {repr(test.arguments) for test in bug.task.tests}
        assert not visible & {repr(test.arguments) for test in bug.task.hidden_tests}


def test_folds_contain_whole_modules_and_similar_numbers_of_edits(caching_sandbox):
    bugs = handwritten_bugs(caching_sandbox, seed=0)
    fold_of = fold_modules(bugs, 3)
    assert set(fold_of.values()) == {0, 1, 2}
    sizes = [0, 0, 0]
    for bug in bugs:
        sizes[fold_of[bug.module]] += len(bug.task.space.edits)
    assert max(sizes) < 1.5 * min(sizes)

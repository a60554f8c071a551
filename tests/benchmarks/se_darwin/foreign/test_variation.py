import ast
from random import Random

from benchmarks.se_darwin.foreign.variation import varied

GIVEN = ["find([1, 3, 7], 3)", "find([2, 2], 5)", "find([], 0)"]


def test_further_calls_keep_the_shape_of_the_given_ones() -> None:
    made = varied(GIVEN, 30, Random(0))

    assert len(made) == 30
    assert not set(made) & set(GIVEN)
    for text in made:
        call = ast.parse(text, mode="eval").body
        assert isinstance(call, ast.Call)
        items, key = map(ast.literal_eval, call.args)
        assert items == sorted(items)
        assert key >= 0


def test_the_same_seed_makes_the_same_calls() -> None:
    assert varied(GIVEN, 9, Random(4)) == varied(GIVEN, 9, Random(4))


def test_a_call_without_literals_is_not_varied() -> None:
    assert varied(["find(items, key)"], 5, Random(0)) == []


def test_rows_of_a_table_keep_their_length() -> None:
    texts = varied(["turn([[1, 2], [3, 4]])"], 20, Random(1))
    assert len(texts) > 1
    for text in texts:
        rows = ast.literal_eval(text.removeprefix("turn(").removesuffix(")"))
        assert {len(row) for row in rows} == {2}

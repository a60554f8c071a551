"""Resources of machines, as Ray names them and as a person reads them."""

import pytest

from genesis_fp16.executors.ray.machines import is_enough, largest_of, written

SMALL = {"CPU": 4.0, "memory": 8.0 * 2**30, "node:10.0.0.1": 1.0}
LARGE = {"CPU": 2.0, "GPU": 8.0, "memory": 4.0 * 2**30}


@pytest.mark.parametrize(
    ("resources", "text"),
    [
        ({"CPU": 1}, "1 CPU"),
        ({"CPU": 0.5, "GPU": 1}, "0.5 CPUs, 1 GPU"),
        ({"CPU": 2, "GPU": 2, "memory": 2**30}, "2 CPUs, 2 GPUs, 1024 MiB of memory"),
        ({}, "0 CPUs"),
    ],
)
def test_resources_are_written(resources: dict[str, float], text: str) -> None:
    assert written(resources) == text


def test_the_largest_of_several_need_not_be_one_machine() -> None:
    assert largest_of([SMALL, LARGE]) == {"CPU": 4.0, "GPU": 8.0, "memory": 8.0 * 2**30}
    assert largest_of([]) == {"CPU": 0, "GPU": 0, "memory": 0}


def test_a_machine_must_have_all_that_is_wanted() -> None:
    assert is_enough(LARGE, {"CPU": 2, "GPU": 8, "memory": 0})
    assert not is_enough(LARGE, {"CPU": 4, "GPU": 1, "memory": 0})
    assert not is_enough(SMALL, {"CPU": 4, "GPU": 1, "memory": 0})

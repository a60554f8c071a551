"""Nothing is collected while the worker imports, and its imports are never searched again."""

import gc

import pytest

from genesis_fp16.worker.collector_pause import collector_paused


def test_what_is_made_meanwhile_is_left_out_of_collections() -> None:
    with collector_paused():
        assert not gc.isenabled()
        made = [[]]
    assert gc.isenabled()
    assert not any(known is made for known in gc.get_objects())


def test_an_error_leaves_the_collector_on() -> None:
    with pytest.raises(ImportError), collector_paused():
        raise ImportError
    assert gc.isenabled()

"""The documented operations change a loss scale as torch's kernel does."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from infrastructure.torch_internals.scale_update import update_by_operations, update_scale


@given(
    overflows=st.lists(st.booleans(), min_size=1, max_size=12),
    interval=st.integers(1, 4),
    start=st.sampled_from([1.0, 1024.0, 2.0**127]),
)
def test_both_ways_change_scale_and_tracker_alike(overflows, interval, start):
    ways = []
    for update in (torch._amp_update_scale_, update_by_operations):
        scale, tracker = torch.tensor(start), torch.zeros((), dtype=torch.int32)
        seen = []
        for overflow in overflows:
            update(scale, tracker, torch.tensor(float(overflow)), 2.0, 0.5, interval)
            seen.append((scale.item(), tracker.item()))
        ways.append(seen)
    assert ways[0] == ways[1]


def test_this_torch_passes_the_check():
    assert update_scale is torch._amp_update_scale_

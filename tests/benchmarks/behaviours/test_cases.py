"""Each case goes right with `FP16Trainer`; that it can go wrong, torch's recipe shows."""

import pytest
import torch

from benchmarks.behaviours.cases import CASES, wrong_in
from benchmarks.behaviours.loops import OurLoop, TextbookLoop

# Lightning and Accelerate go wrong in these alone: torch's recipe does not.
RIGHT_IN_THE_RECIPE = {"clip_at_overflow", "clip_with_fused_optimizer", "scale_in_the_checkpoint"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_ours_goes_right_where_the_recipe_goes_wrong(case) -> None:
    torch.set_num_threads(1)
    assert wrong_in(case, OurLoop) == ""
    assert (wrong_in(case, TextbookLoop) == "") == (case.__name__ in RIGHT_IN_THE_RECIPE)

import json

import numpy as np
import pytest
import torch

from infrastructure.trajectories.encoding import Standardiser


def test_values_are_standardised_clipped_and_inverted():
    values = np.array([[0.0, 5.0], [2.0, 5.0], [np.nan, 5.0]])
    fitted = Standardiser.fit(values, squeeze=True)
    assert fitted.kept == (True, False)
    assert fitted.width == 1
    assert fitted.apply(values)[:, 0].tolist() == [-1.0, 1.0, 0.0]
    assert fitted.apply(np.array([[1e6, 0.0]])).tolist() == [[10.0]]
    mean, variance = fitted.invert(torch.tensor([[1.0]]), torch.tensor([[4.0]]))
    assert (mean.item(), variance.item()) == (2.0, 4.0)
    assert fitted.select_kept(torch.tensor([[1.0, 2.0]])).tolist() == [[1.0]]


def test_statistics_are_equal_when_read_again():
    fitted = Standardiser.fit(np.random.default_rng(0).normal(3, 2, (50, 2)), squeeze=True)
    assert Standardiser.from_json(json.loads(json.dumps(fitted.to_json()))) == fitted


@pytest.mark.parametrize(("value", "out_of_range"), [(1e5, False), (1e8, False), (1e11, True)])
def test_the_range_of_a_heavy_tail_is_that_of_its_logarithm(value, out_of_range):
    values = np.exp(np.random.default_rng(0).normal(0, 3, (5000, 1)))
    fitted = Standardiser.fit(values, squeeze=True)
    assert fitted.symlog == (True,)
    assert fitted.is_out_of_range(np.array([[value]])).tolist() == [out_of_range]
    plain = Standardiser.fit(values, squeeze=False)
    assert plain.symlog == (False,)
    moments = plain.invert(torch.zeros(1, 1), torch.ones(1, 1))
    assert [m.item() for m in moments] == pytest.approx([values.mean(), values.var()])


def test_statistics_saved_without_a_range_flag_no_number():
    saved = Standardiser.fit(np.array([[1.0], [2.0]]), squeeze=False).to_json()
    del saved["low"], saved["high"]
    assert not Standardiser.from_json(saved).is_out_of_range(np.array([[1e14]])).any()

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infrastructure.agent_contract.transition import Box, TransitionSpec
from infrastructure.trajectories.encoding.encoder import FeatureEncoder
from infrastructure.trajectories.encoding.quantile_bins import (
    MOST_BINS,
    ROWS_PER_BIN,
    QuantileBins,
)

ROWS = 2 * MOST_BINS * ROWS_PER_BIN


def _column(values):
    return np.array(values, dtype=np.float64)[:, None]


def _encoder(*names, targets=("reward",), rows=ROWS):
    rng = np.random.default_rng(0)
    columns = {name: rng.normal(100.0, 5.0, rows) for name in names}
    observations = [{name: columns[name][row] for name in names} for row in range(rows)]
    spec = TransitionSpec(
        observation={name: Box() for name in names},
        action={},
        targets={name: Box() for name in targets},
    )
    return FeatureEncoder.fit(spec, observations, [{}] * rows)


def test_a_bin_is_0_below_1_above_and_grows_inside():
    numbers = _column(np.linspace(-1.0, 1.0, 4 * ROWS_PER_BIN))
    bins = QuantileBins.fit(numbers)
    assert bins.edges == pytest.approx((-1.0, -0.5, 0.0, 0.5, 1.0))
    below, inside, above = bins.apply(_column([-0.6, -0.25, 0.1]))[:, 1].tolist()
    assert below < inside < above
    assert inside == pytest.approx((below + above) / 2, abs=1e-3)
    outside = bins.apply(_column([-1.25, -1.0, 1.0, 1.25])).diff(dim=0)
    assert outside[0, 0] > 0.0
    assert outside[2, -1] > 0.0
    assert outside[0, 1:].abs().max() == outside[2, :-1].abs().max() == 0.0
    features = bins.apply(numbers)
    assert features.mean(0).abs().max() < 1e-4
    assert (features.std(0) - 1).abs().max() < 1e-2


@pytest.mark.parametrize("numbers", [np.arange(3 * ROWS_PER_BIN - 1.0), [0.0, 1.0, 2.0] * ROWS])
def test_few_rows_or_few_distinct_numbers_have_no_bins(numbers):
    assert QuantileBins.fit(_column(numbers)) is None


def test_repeated_quantiles_are_one_edge():
    numbers = np.concatenate([np.zeros(ROWS + 16), np.arange(1.0, ROWS + 1)])
    bins = QuantileBins.fit(_column(numbers))
    assert len(bins.edges) == MOST_BINS // 2 + 1


def test_only_numbers_that_no_rollout_predicts_have_bins():
    assert _encoder("speed").dense_width == 1 + MOST_BINS
    assert _encoder("speed", targets=("speed",)).dense_width == 1
    assert _encoder("speed", rows=ROWS_PER_BIN).dense_width == 1


@given(st.floats() | st.none())
def test_the_features_of_any_number_are_finite(value):
    encoder = _encoder("speed", rows=4 * ROWS_PER_BIN)
    dense = encoder.encode([{"speed": value}], [{}]).dense
    assert dense.shape == (1, 5)
    assert bool(dense.isfinite().all())
    if value is None or math.isnan(value):
        mean = encoder.encode([{"speed": encoder.standardiser("observation.speed").mean[0]}], [{}])
        assert torch.equal(dense, mean.dense)


def test_bins_survive_json():
    encoder = _encoder("speed", "load")
    saved = json.loads(json.dumps(encoder.to_json()))
    again = FeatureEncoder.from_json(encoder._spec, saved)
    rows = [{"speed": 97.0, "load": 111.0}]
    assert torch.equal(again.encode(rows, [{}]).dense, encoder.encode(rows, [{}]).dense)
    assert again.format == 4


@pytest.mark.parametrize(
    "edges", [[0.0, 0.5, 1.0], [0.0, 0.5, 0.5, 1.0, 2.0], [0.0, math.nan, 1.0, 2.0, 3.0]]
)
def test_damaged_bins_are_refused(edges):
    bins = QuantileBins.fit(_column(np.linspace(0.0, 1.0, 4 * ROWS_PER_BIN)))
    with pytest.raises(ValueError, match="edges of bins"):
        QuantileBins.from_json({**bins.to_json(), "edges": edges})

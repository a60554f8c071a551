import random
from dataclasses import replace

import pytest
import torch

from infrastructure.agent_contract.transition import Box, Discrete, Transition, TransitionSpec
from infrastructure.world_model import WorldModel
from infrastructure.world_model.distributions import Calibration
from infrastructure.world_model.planning.heads import standard_student

SPEC = TransitionSpec(
    observation={"x": Box(shape=(2,)), "room": Discrete(values=("a", "b", "c"))},
    action={"push": Box()},
    targets={
        "x": Box(shape=(2,), delta=True),
        "room": Discrete(values=("a", "b", "c")),
        "reward": Box(),
        "terminated": Discrete(values=("false", "true")),
    },
    success=("terminated", "true"),
)
ACTION = {"push": 0.4}
STARTS = [{"x": (0.5, -0.3), "room": "a"}, {"x": (-0.8, 0.6), "room": "c"}]
BLENDS = [(1.0, 0.0), (0.0, 1.0), (0.6, 0.4), (0.5, 0.2), (0.0, 0.7), (0.3, 0.0), (0.0, 0.0)]
CALIBRATIONS = [
    Calibration(),
    Calibration(
        scales={"x": (2.0, 0.5)},
        powers={"x": (1.5, 0.6)},
        centers={"x": (0.2, 0.4)},
        edges={"x": (0.3, 0.3)},
        temperatures={"room": 1.7, "terminated": 0.6},
        success=(1.4, -0.3),
    ),
]


@pytest.fixture(scope="module")
def single():
    """A model with one member, whose steps are those of its predictions exactly."""
    torch.set_num_threads(1)
    generator, rows = random.Random(0), []
    for number in range(1500):
        x = (generator.gauss(0, 1), generator.gauss(0, 1))
        room, push = generator.choice("abc"), generator.uniform(-1, 1)
        after = (x[0] + 0.3 * x[1] + generator.gauss(0, 0.2), x[1] * push + generator.gauss(0, 1))
        rows.append(
            Transition(
                group=f"g{number // 15}",
                observation={"x": x, "room": room},
                action={"push": push},
                reward=x[0] * push,
                next_observation={
                    "x": after,
                    "room": room if generator.random() < 0.6 else generator.choice("abc"),
                },
                terminated=generator.random() < 0.3 + 0.2 * (room == "a"),
            )
        )
    model = WorldModel(SPEC, members=1, hidden=16)
    model.fit(rows, epochs=3, batch_size=64, device="cpu", precision="fp32")
    return model.fitted_model


def _changed(fitted, shares, calibration):
    weights = dict.fromkeys(fitted.codec.heads, shares)
    fitted = replace(fitted, weights=weights, calibration=calibration)
    features = fitted.encoder.encode(STARTS, [ACTION] * len(STARTS))
    assert not features.out_of_distribution.any()
    return WorldModel.from_fitted(fitted, {}), fitted.predict(features)


@pytest.mark.parametrize("calibration", CALIBRATIONS, ids=["raw", "calibrated"])
@pytest.mark.parametrize("shares", BLENDS, ids=str)
def test_means_and_ends_are_those_of_predictions(single, shares, calibration):
    model, predicted = _changed(single, shares, calibration)
    rolled = model.rollout(STARTS, [ACTION], particles=0, reward=None)
    start = torch.tensor([each["x"] for each in STARTS], dtype=torch.float64)
    assert torch.allclose(rolled.mean["x"][:, 1], start + predicted["x"].mean, atol=1e-5)
    assert torch.allclose(rolled.reward[0, :, 0], predicted["reward"].mean[:, 0], atol=1e-5)
    ends_N = predicted["terminated"].probabilities[:, 1]
    assert torch.allclose(1 - rolled.alive[0, :, 1], ends_N, atol=1e-4)
    likeliest_N = predicted["room"].probabilities.argmax(1)
    assert rolled.observation["room"][0, :, 1].tolist() == likeliest_N.tolist()


@pytest.mark.parametrize("calibration", CALIBRATIONS, ids=["raw", "calibrated"])
@pytest.mark.parametrize("shares", BLENDS, ids=str)
def test_particles_have_the_predicted_distribution(single, shares, calibration):
    model, predicted = _changed(single, shares, calibration)
    rolled = model.rollout(STARTS, [ACTION], particles=8000)
    deviation_NC = predicted["x"].variance.sqrt()
    assert torch.allclose(rolled.sd["x"][:, 1], deviation_NC, rtol=0.04)
    rooms_PN = rolled.observation["room"][:, :, 1]
    shares_NL = torch.stack([(rooms_PN == label).double().mean(0) for label in range(3)], dim=1)
    assert torch.allclose(shares_NL, predicted["room"].probabilities, atol=0.02)


def test_particles_have_the_calibrated_tails(single):
    tails = Calibration(scales={"x": (1.0, 1.0)}, tails={"x": (0.2, 0.0)})
    model, predicted = _changed(single, (1.0, 0.0), tails)
    rolled = model.rollout(STARTS, [ACTION], particles=20_000)
    error_PNC = rolled.observation["x"][:, :, 1] - rolled.mean["x"][:, 1]
    far_NC = ((error_PNC / predicted["x"].variance.sqrt()).abs() > 3.123).double().mean(0)
    assert far_NC[:, 0].tolist() == pytest.approx([0.01, 0.01], rel=0.25)  # t, 5 degrees of freedom
    assert far_NC[:, 1].tolist() == pytest.approx([0.0018, 0.0018], rel=0.6)


@pytest.mark.parametrize(
    ("tail", "beyond"),  # quantiles of the t with 1 / tail degrees of freedom, times its 1 / sd
    [(0.0, {1.645: 0.1, 2.576: 0.01}), (0.2, {1.561: 0.1, 3.123: 0.01}), (0.4, {1.12: 0.1})],
)
def test_draws_are_of_students_t(tail, beyond):
    generator = torch.Generator().manual_seed(0)
    drawn_N = standard_student(torch.tensor([tail]), torch.empty(400_000, 1), generator)
    assert bool(drawn_N.isfinite().all())
    assert float(drawn_N.mean()) == pytest.approx(0.0, abs=0.01)
    for quantile, share in beyond.items():
        assert float((drawn_N.abs() > quantile).double().mean()) == pytest.approx(share, rel=0.05)

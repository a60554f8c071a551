import math
import random

import pytest
import torch

from infrastructure.agent_contract.transition import Box, Discrete, Text, Transition, TransitionSpec
from infrastructure.world_model.distributions.predictive import predictive_distributions
from infrastructure.world_model.fitting.linear_fit import _outputs, fit_linear
from infrastructure.world_model.fitting.ranking_loss import ranking_nlls
from infrastructure.world_model.fitting.training_data import prepare_training_data
from infrastructure.world_model.networks.network import LinearNetwork, NetworkShape

SPEC = TransitionSpec(
    observation={"x": Box(shape=(2,))},
    action={},
    targets={"y": Box(), "label": Discrete(values=("no", "yes"))},
    success=("label", "yes"),
)


def test_it_finds_the_regression_that_made_the_data():
    generator = random.Random(1)
    transitions = []
    for row in range(4000):
        x = (generator.gauss(0, 1), generator.gauss(0, 1))
        chance = 1 / (1 + math.exp(-(2 * x[0] - x[1] - 1)))
        label = "yes" if generator.random() < chance else "no"
        y = 3 * x[0] + 2 + generator.gauss(0, 0.5)
        transitions.append(
            Transition(
                group=f"g{row // 40}",
                observation={"x": x},
                action={},
                next_observation={"y": y, "label": label},
            )
        )
    data = prepare_training_data(SPEC, transitions)
    network = fit_linear(data)
    features = data.encoder.encode([{"x": (1.0, 0.0)}, {"x": (-1.0, 1.0)}], [{}, {}])
    predicted = predictive_distributions(network(features.inputs()), data.codec, 2)
    assert predicted["y"].mean[:, 0].tolist() == pytest.approx([5.0, -1.0], abs=0.1)
    assert predicted["y"].variance[:, 0].tolist() == pytest.approx([0.25, 0.25], abs=0.05)
    expected = [1 / (1 + math.exp(-1)), 1 / (1 + math.exp(4))]
    assert predicted["label"].probabilities[:, 1].tolist() == pytest.approx(expected, abs=0.05)


def test_it_ranks_actions_even_if_states_differ_more_than_actions():
    """Success depends mostly on the state; only comparisons within a state rank the actions."""
    generator = random.Random(2)
    transitions = []
    for state in range(300):
        hope = generator.gauss(-4.0, 2.0)
        for _ in range(8):
            good = generator.gauss(0, 1)
            chance = 1 / (1 + math.exp(-(hope + 1.5 * good)))
            label = "yes" if generator.random() < chance else "no"
            transitions.append(
                Transition(
                    group=f"g{state // 5}",
                    observation={"x": (float(state % 7), float(state % 11))},
                    action={"good": good},
                    next_observation={"y": 0.0, "label": label},
                )
            )
    spec = TransitionSpec(
        observation=SPEC.observation,
        action={"good": Box()},
        targets={"label": Discrete(values=("no", "yes"))},
        success=("label", "yes"),
    )
    data = prepare_training_data(spec, transitions)
    succeeded = data.train.outcomes["label"] == 1
    rankable = ranking_nlls(torch.zeros(len(succeeded)), succeeded, data.train.states)[1]
    assert int(rankable.sum()) > 50
    network = fit_linear(data)
    observations = [{"x": (1.0, 1.0)}] * 3
    features = data.encoder.encode(observations, [{"good": g} for g in (-1.0, 0.0, 1.0)])
    odds = predictive_distributions(network(features.inputs()), data.codec, 3)["label"].log_odds(1)
    assert (odds[1:] - odds[:-1]).tolist() == pytest.approx([1.5, 1.5], abs=0.6)


def test_the_fast_gradient_equals_that_of_the_network():
    spec = TransitionSpec(
        observation={"words": Text(buckets=16)},
        action={},
        targets={"label": Discrete(values=("no", "yes"))},
        success=("label", "yes"),
    )
    generator = random.Random(0)
    transitions = [
        Transition(
            group=f"g{row // 10}",
            observation={"words": [generator.choice("abcde") for _ in range(row % 4)]},
            action={},
            next_observation={"label": generator.choice(("no", "yes"))},
        )
        for row in range(400)
    ]
    data = prepare_training_data(spec, transitions)
    network = LinearNetwork(NetworkShape.of(data.encoder, data.codec, spare_rows=False))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(1))
    plain = network(data.train.features.inputs())["label.logits"][0]
    fast = _outputs(network, data.train)()
    assert torch.allclose(fast, plain, atol=1e-5)
    weight = torch.randn(plain.shape, generator=torch.Generator().manual_seed(2))
    expected = torch.autograd.grad((plain * weight).sum(), list(network.parameters()))
    found = torch.autograd.grad((fast * weight).sum(), list(network.parameters()))
    for one, other in zip(expected, found, strict=True):
        assert torch.allclose(one, other, atol=1e-4)


def test_the_best_label_may_depend_on_the_observation():
    """The only field of the action is a label: each label has weights of its own."""
    generator = random.Random(4)
    transitions = []
    for row in range(1200):
        x, kind = generator.gauss(0, 1), generator.choice("ab")
        label = "yes" if generator.random() < (0.9 if (x > 0) == (kind == "a") else 0.1) else "no"
        transitions.append(
            Transition(
                group=str(row),
                observation={"x": (x, 0.0)},
                action={"kind": kind},
                next_observation={"label": label},
            )
        )
    spec = TransitionSpec(
        observation=SPEC.observation,
        action={"kind": Discrete(values=("a", "b"))},
        targets={"label": Discrete(values=("no", "yes"))},
        success=("label", "yes"),
    )
    data = prepare_training_data(spec, transitions)
    network = fit_linear(data)
    observations = [{"x": (x, 0.0)} for x in (2.0, 2.0, -2.0, -2.0)]
    features = data.encoder.encode(observations, [{"kind": kind} for kind in "abab"])
    predicted = predictive_distributions(network(features.inputs()), data.codec, 4)
    chances = predicted["label"].probabilities[:, 1].tolist()
    assert [chance > 0.7 for chance in chances] == [True, False, False, True]

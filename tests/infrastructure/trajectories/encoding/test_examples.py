import pytest
import torch

from infrastructure.agent_contract.transition import Box, Discrete, Text, TransitionSpec
from infrastructure.trajectories.encoding import FeatureEncoder
from infrastructure.trajectories.encoding.learned import EXAMPLES

SPEC = TransitionSpec(
    observation={"x": Box(shape=(2,)), "kind": Discrete(values=("a", "b"))},
    action={"text": Text()},
    targets={"y": Box()},
)


def _row(number):
    """``x[0]`` tells the kind; ``x[1]`` tells nothing."""
    kind = "ab"[number % 2]
    return {"x": [2.0 * (kind == "b") + 0.1 * (number % 3), float(number * 7 % 5)], "kind": kind}


@pytest.fixture(scope="module")
def encoder():
    rows = [_row(number) for number in range(300)]
    return FeatureEncoder.fit(SPEC, rows, [{"text": f"word{n % 9}"} for n in range(300)])


def _encode(encoder, *observations):
    return encoder.encode(list(observations), [{"text": "word1"}] * len(observations))


def test_only_what_is_missing_without_explanation_is_unknown(encoder):
    assert _encode(encoder, _row(0)).unknown is None
    features = _encode(encoder, _row(0), {"x": [None, 1.0], "kind": "b"}, {"x": [0.0, 1.0]})
    assert features.unknown.tolist() == [
        [False] * 5,
        [True, False, False, False, False],
        [False, False, True, True, True],
    ]
    assert features.take(torch.tensor([1])).unknown.tolist() == [[True] + [False] * 4]


def test_a_value_is_filled_by_examples_that_resemble_the_row(encoder):
    features = _encode(encoder, _row(0), {"x": [2.1, 1.0]}, {"x": [0.0, 4.0], "kind": "never"})
    examples = encoder.examples
    [(weights_MR, filled)] = examples.fill(features, 10)
    assert weights_MR.shape == (2, EXAMPLES)
    assert weights_MR.sum(1).tolist() == pytest.approx([1.0, 1.0])
    kinds = filled.dense.view(2, EXAMPLES, -1)[:, :, 2:4]
    chances = torch.einsum("mr,mrl->ml", weights_MR, kinds.double())
    assert chances[0, 1] > 0.95
    assert chances[1, 0] > 0.95
    own = filled.dense.view(2, EXAMPLES, -1)[:, :, :2]
    assert (own == features.dense[1:, None, :2]).all()  # what is known stays
    assert filled.unknown is None
    assert len(filled.linear_texts["action.text"].lengths) == 2 * EXAMPLES


def test_a_field_that_tells_nothing_does_not_choose_the_examples(encoder):
    first, second = _encode(encoder, {"x": [2.1, 0.0]}), _encode(encoder, {"x": [2.1, 4.0]})
    weights = [next(encoder.examples.fill(each, 10))[0] for each in (first, second)]
    assert torch.allclose(*weights, atol=1e-6)


def test_parts_are_filled_alike(encoder):
    rows = [{"x": [None, float(number % 5)], "kind": "ab"[number % 2]} for number in range(7)]
    features = _encode(encoder, *rows)
    [(weights_MR, filled)] = encoder.examples.fill(features, 10)
    parts = list(encoder.examples.fill(features, 3))
    assert [len(part) for part, _ in parts] == [3, 3, 1]
    assert torch.allclose(torch.cat([part for part, _ in parts]), weights_MR)
    assert torch.equal(torch.cat([each.dense for _, each in parts]), filled.dense)


def test_an_encoder_of_a_former_version_has_no_examples(encoder):
    saved = encoder.to_json()
    assert FeatureEncoder.from_json(SPEC, saved).examples is not None
    del saved["examples"]
    assert FeatureEncoder.from_json(SPEC, saved).examples is None

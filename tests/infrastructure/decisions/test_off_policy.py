import numpy as np
import pytest

from infrastructure.decisions.off_policy import (
    LoggedRewards,
    OffPolicyEstimator,
    TargetPolicy,
    cross_fitted,
    greedy,
    shown,
)


def _world(count: int, *, groups: int = 0, seed: int = 0):
    """Two actions worth .2 and .7, logged uniformly; the policy takes the second one."""
    generator = np.random.default_rng(seed)
    chosen = generator.integers(0, 2, count)
    reward = (generator.random(count) < np.where(chosen == 1, 0.7, 0.2)).astype(float)
    names = [str(row % groups if groups else row) for row in range(count)]
    logged = LoggedRewards(
        reward_N=reward,
        propensity_N=np.full(count, 0.5),
        predicted_N=np.where(chosen == 1, 0.6, 0.3),
        groups=names,
    )
    second = TargetPolicy(
        probability_N=greedy([1] * count, chosen), predicted_N=np.full(count, 0.6)
    )
    first = TargetPolicy(probability_N=greedy([0] * count, chosen), predicted_N=np.full(count, 0.3))
    return logged, first, second


def test_both_estimates_follow_their_formulas():
    logged, _, policy = _world(500)
    weight = policy.probability_N / logged.propensity_N
    estimate = OffPolicyEstimator(logged, replications=50).value(policy)
    snips = (weight * logged.reward_N).sum() / weight.sum()
    robust = (policy.predicted_N + weight * (logged.reward_N - logged.predicted_N)).mean()
    assert estimate.snips.value == pytest.approx(snips)
    assert estimate.doubly_robust.value == pytest.approx(robust)
    assert estimate.effective_sample_size == pytest.approx(policy.probability_N.sum())


def test_the_intervals_contain_what_the_policies_are_worth():
    logged, first, second = _world(4000)
    estimator = OffPolicyEstimator(logged)
    value, gain = estimator.value(second), estimator.difference(second, first)
    for estimate, truth in ((value, 0.7), (gain, 0.5)):
        for interval in (estimate.snips, estimate.doubly_robust):
            assert interval.low < truth < interval.high
            assert interval.high - interval.low < 0.15
    assert "95 % interval" in shown(gain)


def test_decisions_of_few_groups_are_not_enough():
    logged, _, policy = _world(4000, groups=20)
    estimate = OffPolicyEstimator(logged, replications=50).value(policy)
    assert not estimate.is_enough
    assert shown(estimate) == "not enough: effective sample size 20 of 100" or (
        "effective sample size 19" in shown(estimate)
    )


def test_a_policy_whose_actions_were_never_taken_is_not_enough():
    logged, _, policy = _world(1000)
    never = TargetPolicy(probability_N=np.zeros(1000), predicted_N=policy.predicted_N)
    estimate = OffPolicyEstimator(logged, replications=20).value(never)
    assert (estimate.effective_sample_size, estimate.is_enough) == (0.0, False)


def test_clipping_tells_its_bias():
    logged, _, policy = _world(1000)
    whole = OffPolicyEstimator(logged, replications=20).value(policy)
    clipped = OffPolicyEstimator(logged, replications=20, max_weight=1.5).value(policy)
    assert clipped.clipped_share == pytest.approx(policy.probability_N.mean())
    changed = clipped.doubly_robust.value - whole.doubly_robust.value
    assert clipped.clipping_bias == pytest.approx(changed)
    assert whole.clipping_bias == 0.0


def test_no_group_is_predicted_by_a_fit_on_itself():
    features = np.zeros((40, 1))
    groups = [str(row // 20) for row in range(40)]
    rewards = np.repeat([0.0, 1.0], 20)
    [predicted, other] = cross_fitted(features, rewards, groups, [features])
    assert predicted.tolist() == pytest.approx([1.0] * 20 + [0.0] * 20)
    assert other.tolist() == predicted.tolist()


@pytest.mark.parametrize(
    ("propensity", "reward"), [([0.0, 0.5], [1.0, 1.0]), ([0.5, 0.5], [np.nan, 1.0])]
)
def test_impossible_numbers_are_refused(propensity, reward):
    with pytest.raises(ValueError, match="must"):
        LoggedRewards(
            reward_N=np.array(reward),
            propensity_N=np.array(propensity),
            predicted_N=np.zeros(2),
            groups=["a", "b"],
        )

"""Agents whose policy generates its own data: its roles, and how far they disagree."""

from deploy.grafana.overview import PRECISION_STATES
from deploy.grafana.panels import Lines, Query, Timeline

_MEASURED = 'agent=~"$agent", pair="policy_rollout"'
_REFERENCE = 'agent=~"$agent", pair="reference_fp32"'

PANELS = (
    Timeline(
        title="Precision by role",
        why="Type in which each role of a policy job computes.",
        queries=[
            Query(
                expr='genesis_role_precision_info{agent=~"$agent", compute="fp32"} '
                'or genesis_role_precision_info{agent=~"$agent", compute="fp16"} * 2 '
                'or genesis_role_precision_info{agent=~"$agent", compute="bf16"} * 3',
                legend="{{role}} {{store}}/{{compute}}/{{out}}",
            )
        ],
        states=PRECISION_STATES,
        span=24,
    ),
    Lines(
        title="Difference of trainer and rollout",
        why="k3 estimate of KL(rollout || policy), nats per token, on sampled tokens. The floor is "
        "the same with both roles in FP32: the order of operations, the cache, stale weights. What "
        "is above it is rounding: GenesisMismatch and the guard use it. The reference is compared "
        "with itself in FP32.",
        queries=[
            Query(expr=f'genesis_mismatch_kl{{{_MEASURED}, estimator="k3"}} > 0', legend="k3"),
            Query(expr=f"genesis_mismatch_excess_kl{{{_MEASURED}}} > 0", legend="above the floor"),
            Query(expr=f"genesis_mismatch_floor_kl{{{_MEASURED}}} > 0", legend="floor in FP32"),
            Query(
                expr=f'genesis_mismatch_kl{{{_REFERENCE}, estimator="k3"}} > 0',
                legend="reference, from itself in FP32",
            ),
        ],
        nothing="No data: only for agents whose policy generates its own data",
        log_base=10,
        warn_above=0.001,
    ),
    Lines(
        title="Difference of the probabilities",
        why="|policy - rollout| of a sampled token's probability. BF16 is about 8 times FP16.",
        queries=[
            Query(
                expr=f"genesis_mismatch_probability_difference{{{_MEASURED}}} > 0",
                legend="{{statistic}}",
            )
        ],
        log_base=10,
    ),
    Lines(
        title="Share of the sequences that importance weights leave",
        why="Effective sample size divided by the number of sequences. Near 1: the data are worth "
        "as much as the policy's own. It falls with the length of the completions.",
        queries=[
            Query(
                expr=f"genesis_mismatch_effective_sample_ratio{{{_MEASURED}}}",
                legend="effective share",
            ),
            Query(expr=f"genesis_mismatch_correlation{{{_MEASURED}}}", legend="correlation"),
        ],
        unit="percentunit",
    ),
    Lines(
        title="What the correction leaves",
        why="Of the last round before an evaluation: share of the tokens that it dropped, mean "
        "weight of the tokens, and the effective share of the sequences before it.",
        queries=[
            Query(expr='genesis_policy_correction_ratio{agent=~"$agent"}', legend="{{statistic}}"),
        ],
        unit="percentunit",
        nothing="No data: only for agents whose policy generates its own data",
    ),
    Lines(
        title="Chi-squared divergence",
        why="By token and by sequence. Beyond 1 a sequence's importance weight says little.",
        queries=[
            Query(expr=f"genesis_mismatch_chi2{{{_MEASURED}}} > 0", legend="{{level}}"),
        ],
        log_base=10,
    ),
    Lines(
        title="Direction of the difference",
        why="k1, the mean log-ratio, and the slope of its sum by length, nats per token. Far from "
        "0: the trainer is off in one direction, so long sequences drift.",
        queries=[
            Query(expr=f'genesis_mismatch_kl{{{_MEASURED}, estimator="k1"}}', legend="k1"),
            Query(expr=f"genesis_mismatch_slope{{{_MEASURED}}}", legend="slope by length"),
        ],
    ),
    Lines(
        title="Cost of the comparisons",
        why="Share of the time that passes. The worker keeps its mean below 1 % from the second "
        "comparison of an attempt on.",
        queries=[
            Query(
                expr="sum without (pair) (rate("
                'genesis_mismatch_seconds_total{agent=~"$agent"}[$__rate_interval]))',
                legend="all pairs",
            ),
        ],
        unit="percentunit",
    ),
    Lines(
        title="Time of one comparison",
        why="It decides how many comparisons fit into that share.",
        queries=[
            Query(
                expr='rate(genesis_mismatch_seconds_total{agent=~"$agent"}[$__rate_interval]) '
                '/ rate(genesis_mismatch_samples_total{agent=~"$agent"}[$__rate_interval]) > 0',
                legend="{{pair}}",
            ),
        ],
        unit="s",
    ),
)

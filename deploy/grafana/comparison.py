"""FP16 and FP32 compared: the same batch in both, and agents in each."""

from deploy.grafana.panels import Lines, Query

IN_FORCE = "on (agent, instance, job) group_left (effective) genesis_precision_info"

PANELS = (
    Lines(
        title="One frozen batch, two precisions",
        why="Weights and random numbers are the same, so the difference is rounding.",
        queries=[
            Query(expr='genesis_fp32_baseline_loss{agent=~"$agent"}', legend="{{agent}}, FP32"),
            Query(expr='genesis_half_baseline_loss{agent=~"$agent"}', legend="{{agent}}, half"),
        ],
    ),
    Lines(
        title="Loss error of half precision",
        why="Difference of the two, divided by FP32's loss or, if larger, by a hundredth of the "
        "run's largest; the guard uses it. GenesisLossOffBaseline fires above 5 %.",
        queries=[
            Query(expr='genesis_half_loss_error_ratio{agent=~"$agent"}', legend="{{agent}}"),
        ],
        unit="percentunit",
        warn_above=0.05,
    ),
    Lines(
        title="Gradient error of half precision",
        why="Length of the difference divided by the length of FP32's gradient, on the same batch.",
        queries=[
            Query(
                expr='genesis_half_gradient_error_ratio{agent=~"$agent"}',
                legend="{{agent}}",
            )
        ],
        unit="percentunit",
    ),
    Lines(
        title="Pass duration",
        why="Time of the forward and backward pass of that batch.",
        queries=[
            Query(
                expr='genesis_baseline_pass_seconds{agent=~"$agent"}',
                legend="{{agent}}, {{precision}}",
            )
        ],
        unit="s",
    ),
    Lines(
        title="Speed-up of a pass",
        why="FP32's time divided by half's while a run trains. Each is the shortest of the last "
        "passes, since other load slows single ones. Below 1, half precision costs time. On a "
        "CPU it proves nothing.",
        queries=[
            Query(
                expr='min_over_time(genesis_baseline_pass_seconds{agent=~"$agent", '
                'precision="fp32"}[$__rate_interval]) / ignoring (precision) '
                'min_over_time(genesis_baseline_pass_seconds{agent=~"$agent", '
                'precision="half"}[$__rate_interval]) and on (agent, instance, job) '
                'rate(genesis_training_samples_total{agent=~"$agent"}[$__rate_interval]) > 0',
                legend="{{agent}}",
            )
        ],
    ),
    Lines(
        title="Step duration",
        why="Mean time of the steps in each precision.",
        queries=[
            Query(
                expr="sum by (agent, precision) (rate(genesis_training_step_duration_seconds_sum"
                '{agent=~"$agent"}[$__rate_interval])) / (sum by (agent, precision) '
                "(rate(genesis_training_step_duration_seconds_count"
                '{agent=~"$agent"}[$__rate_interval])) > 0)',
                legend="{{agent}}, {{precision}}",
            )
        ],
        unit="s",
    ),
    Lines(
        title="Steps in each precision",
        why="Optimizer steps per second over the chosen agents.",
        queries=[
            Query(
                expr="sum by (precision) (rate(genesis_training_step_duration_seconds_count"
                '{agent=~"$agent"}[$__rate_interval]))',
                legend="{{precision}}",
            )
        ],
        unit="ops",
    ),
    Lines(
        title="Agents in each precision",
        why="Number of agents by precision in force; it shows the share of a canary.",
        queries=[
            Query(
                expr='sum by (effective) (genesis_precision_info{agent=~"$agent"})',
                legend="{{effective}}",
            )
        ],
    ),
    Lines(
        title="Throughput by precision",
        why="Samples per second of the agents in each precision.",
        queries=[
            Query(
                expr="sum by (effective) (rate(genesis_training_samples_total"
                f'{{agent=~"$agent"}}[$__rate_interval]) * {IN_FORCE})',
                legend="{{effective}}",
            )
        ],
        unit="ops",
    ),
    Lines(
        title="Training loss by precision",
        why="Loss of each agent, by the precision in force.",
        queries=[
            Query(
                expr=f'genesis_training_loss{{agent=~"$agent"}} * {IN_FORCE}',
                legend="{{agent}}, {{effective}}",
            )
        ],
    ),
    Lines(
        title="GPU memory by precision",
        why="Mean peak of the agents in each precision.",
        queries=[
            Query(
                expr="avg by (effective) ((genesis_cuda_memory_allocated_bytes"
                f'{{agent=~"$agent"}} > 0) * {IN_FORCE})',
                legend="{{effective}}",
            )
        ],
        nothing="No data: needs a GPU",
        unit="bytes",
    ),
    Lines(
        title="FP16 overflow rate",
        why="Share of all FP16 steps over the chosen agents.",
        queries=[
            Query(
                expr="sum (rate(genesis_fp16_overflow_steps_total"
                '{agent=~"$agent"}[$__rate_interval])) / sum (rate('
                'genesis_fp16_training_steps_total{agent=~"$agent"}[$__rate_interval]))',
                legend="overflow",
            )
        ],
        unit="percentunit",
        warn_above=0.3,
    ),
)

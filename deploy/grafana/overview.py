"""All agents: precision in force, overflows, rollbacks, runs and queue."""

from deploy.grafana.panels import BLUE, GREEN, GREY, RED, YELLOW, Lines, Number, Query, Timeline

PRECISION_STATES = {1: ("FP32", GREY), 2: ("FP16", GREEN), 3: ("BF16", BLUE)}
GUARD_STATES = {1: ("watching", GREEN), 2: ("tripped", RED), 3: ("probation", YELLOW)}

PANELS = (
    Number(
        title="Plugins up",
        why="Agents that can be trained, without quarantined ones.",
        queries=[Query(expr="sum(genesis_plugin_up)", legend="up")],
        span=6,
        steps={None: RED, 1: GREEN},
    ),
    Number(
        title="Plugins quarantined",
        why="Agents whose plugin failed its probe; genesis-fp16 agents shows the reason.",
        queries=[Query(expr="count(genesis_plugin_up) - sum(genesis_plugin_up)", legend="down")],
        span=6,
        steps={None: GREEN, 1: RED},
    ),
    Number(
        title="Runs training",
        why="Runs in the state running.",
        queries=[Query(expr='sum(genesis_run_state{state="running"})', legend="running")],
        span=6,
        steps={None: GREEN},
    ),
    Number(
        title="Runs waiting",
        why="Runs that wait for a slot.",
        queries=[Query(expr="sum(genesis_queue_depth)", legend="waiting")],
        span=6,
        steps={None: GREEN, 5: YELLOW},
    ),
    Timeline(
        title="Precision in force",
        why="What each agent's worker has acknowledged. One agent's dashboard shows the reason.",
        queries=[
            Query(
                expr='max by (agent) (genesis_precision_info{effective="fp32"} '
                'or genesis_precision_info{effective="fp16"} * 2 '
                'or genesis_precision_info{effective="bf16"} * 3)',
                legend="{{agent}}",
            )
        ],
        states=PRECISION_STATES,
    ),
    Timeline(
        title="The guard",
        why="Tripped: the guard keeps the agent in FP32. Probation: half precision on trial.",
        queries=[
            Query(
                expr='max by (agent) (genesis_guard_state{state="watching"} '
                'or genesis_guard_state{state="tripped"} * 2 '
                'or genesis_guard_state{state="probation"} * 3)',
                legend="{{agent}}",
            )
        ],
        states=GUARD_STATES,
    ),
    Lines(
        title="FP16 overflow rate",
        why="Share of all FP16 steps. GenesisOverflowStorm fires above 30 %.",
        queries=[
            Query(
                expr="sum by (agent) (rate(genesis_fp16_overflow_steps_total[$__rate_interval])) "
                "/ sum by (agent) (rate(genesis_fp16_training_steps_total[$__rate_interval]))",
                legend="{{agent}}",
            )
        ],
        unit="percentunit",
        warn_above=0.3,
    ),
    Lines(
        title="Skipped steps",
        why="Steps per second that did not change the model, by cause, over all agents.",
        queries=[
            Query(
                expr="sum by (outcome) "
                '(rate(genesis_training_steps_total{outcome!="applied"}[$__rate_interval]))',
                legend="{{outcome}}",
            )
        ],
        unit="ops",
    ),
    Lines(
        title="Rollbacks to FP32",
        why="By agent and reason, such as flag, operator, guard, or floor_policy (the worker).",
        queries=[
            Query(
                expr="round(sum by (agent, reason) "
                "(increase(genesis_precision_rollbacks_total[$__rate_interval]))) > 0",
                legend="{{agent}}, {{reason}}",
            )
        ],
        bars=True,
    ),
    Lines(
        title="Guard trips",
        why="Times the guard changed an agent's precision, by trigger.",
        queries=[
            Query(
                expr="round(sum by (agent, trigger) "
                "(increase(genesis_guard_trips_total[$__rate_interval]))) > 0",
                legend="{{agent}}, {{trigger}}",
            )
        ],
        bars=True,
    ),
    Lines(
        title="Throughput",
        why="Training samples per second.",
        queries=[
            Query(
                expr="sum by (agent) (rate(genesis_training_samples_total[$__rate_interval]))",
                legend="{{agent}}",
            )
        ],
        unit="ops",
    ),
    Lines(
        title="Runs that ended",
        why="Runs that ended, by result, over all agents.",
        queries=[
            Query(
                expr="round(sum by (result) (increase(genesis_runs_total[$__rate_interval]))) > 0",
                legend="{{result}}",
            )
        ],
        bars=True,
    ),
    Lines(
        title="Since the last success",
        why="Time since a run of the agent succeeded; agents without a successful run are missing.",
        queries=[
            Query(
                expr="time() - (genesis_last_success_timestamp_seconds > 0)",
                legend="{{agent}}",
            )
        ],
        unit="s",
    ),
    Lines(
        title="Attempts resumed",
        why="Attempts that resumed from a checkpoint: before each, an attempt ended early.",
        queries=[
            Query(
                expr="round(sum by (agent) "
                "(increase(genesis_run_resumes_total[$__rate_interval]))) > 0",
                legend="{{agent}}",
            )
        ],
        bars=True,
    ),
)

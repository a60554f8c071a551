"""One agent: precision, loss, overflows, speed, checkpoints."""

from deploy.grafana.overview import GUARD_STATES, PRECISION_STATES
from deploy.grafana.panels import BLUE, Lines, Query, Timeline

NO_PARTS = "No data: only for agents whose job has parts"
IN_STATE = {0: (" ", "transparent"), 1: ("now", BLUE)}

PANELS = (
    Timeline(
        title="Precision in force",
        why="Requested and effective precision, and the reason, as the worker acknowledged.",
        queries=[
            Query(
                expr='genesis_precision_info{agent=~"$agent", effective="fp32"} '
                'or genesis_precision_info{agent=~"$agent", effective="fp16"} * 2 '
                'or genesis_precision_info{agent=~"$agent", effective="bf16"} * 3',
                legend="{{requested}} asked, {{effective}} by {{reason}}",
            )
        ],
        states=PRECISION_STATES,
    ),
    Timeline(
        title="Run state",
        why="Runs of the agent in each state.",
        queries=[Query(expr='genesis_run_state{agent=~"$agent"}', legend="{{state}}")],
        states=IN_STATE,
    ),
    Lines(
        title="Loss",
        why="Mean finite loss of the last steps, and the loss of one frozen batch in both "
        "precisions. The last two lines should coincide.",
        queries=[
            Query(expr='genesis_training_loss{agent=~"$agent"}', legend="training"),
            Query(expr='genesis_fp32_baseline_loss{agent=~"$agent"}', legend="frozen batch, FP32"),
            Query(expr='genesis_half_baseline_loss{agent=~"$agent"}', legend="frozen batch, half"),
        ],
    ),
    Lines(
        title="Loss scale and overflows",
        why="A red point marks overflows of FP16 steps at that scale or below. Each one halves the "
        "scale; it doubles after a growth interval. A scale that keeps falling is a reason to "
        "roll back. In FP32 the scale is 1.",
        queries=[
            Query(expr='genesis_fp16_loss_scale{agent=~"$agent"} > 0', legend="loss scale"),
            Query(
                expr='max_over_time(genesis_fp16_loss_scale{agent=~"$agent"}[$__rate_interval]) '
                'and increase(genesis_fp16_overflow_steps_total{agent=~"$agent"}'
                "[$__rate_interval]) > 0",
                legend="overflow",
                marks=True,
            ),
        ],
        log_base=2,
    ),
    Lines(
        title="Loss scale by part",
        why="Each part of a job has a loss scale of its own. A red point marks its overflows. A "
        "part whose scale keeps falling rolls back all of them.",
        queries=[
            Query(expr='genesis_part_loss_scale{agent=~"$agent"} > 0', legend="{{part}}"),
            Query(
                expr='max_over_time(genesis_part_loss_scale{agent=~"$agent"}[$__rate_interval]) '
                'and increase(genesis_part_overflow_steps_total{agent=~"$agent"}'
                "[$__rate_interval]) > 0",
                legend="overflow of {{part}}",
                marks=True,
            ),
        ],
        nothing=NO_PARTS,
        log_base=2,
    ),
    Lines(
        title="Overflow rate by part",
        why="Share of the part's own steps, which may be few among the steps of the job.",
        queries=[
            Query(
                expr="rate(genesis_part_overflow_steps_total"
                '{agent=~"$agent"}[$__rate_interval]) '
                '/ rate(genesis_part_steps_total{agent=~"$agent"}[$__rate_interval])',
                legend="{{part}}",
            )
        ],
        nothing=NO_PARTS,
        unit="percentunit",
        warn_above=0.3,
    ),
    Lines(
        title="Loss and gradient norm by part",
        why="Mean finite loss of the part's last steps; its last finite norm before clipping.",
        queries=[
            Query(expr='genesis_part_loss{agent=~"$agent"}', legend="loss of {{part}}"),
            Query(expr='genesis_part_grad_norm{agent=~"$agent"}', legend="norm of {{part}}"),
        ],
        nothing=NO_PARTS,
    ),
    Lines(
        title="Skipped steps",
        why="Share of all steps, by cause: the gradients or the loss were not finite.",
        queries=[
            Query(
                expr="sum by (outcome) (rate(genesis_training_steps_total"
                '{agent=~"$agent", outcome!="applied"}[$__rate_interval])) '
                "/ ignoring (outcome) group_left () "
                'sum (rate(genesis_training_steps_total{agent=~"$agent"}[$__rate_interval]))',
                legend="{{outcome}}",
            ),
        ],
        unit="percentunit",
        warn_above=0.3,
    ),
    Lines(
        title="FP16 overflow rate",
        why="Share of all FP16 steps; GenesisOverflowStorm and the guard use it.",
        queries=[
            Query(
                expr='rate(genesis_fp16_overflow_steps_total{agent=~"$agent"}[$__rate_interval]) '
                '/ rate(genesis_fp16_training_steps_total{agent=~"$agent"}[$__rate_interval])',
                legend="overflow",
            )
        ],
        unit="percentunit",
        warn_above=0.3,
    ),
    Lines(
        title="Causes of overflows",
        why="Overflows that the worker repeated. Forward: a value leaves the range at every loss "
        "scale; precision explain names the module to keep in FP32. Backward: a gradient does. "
        "FP32: not finite there either. Not reproduced: another batch overflowed.",
        queries=[
            Query(
                expr="increase(genesis_overflow_diagnoses_total"
                '{agent=~"$agent"}[$__rate_interval]) > 0',
                legend="{{cause}}",
            )
        ],
        nothing="None: no step overflowed",
        bars=True,
    ),
    Lines(
        title="Underflow and stagnation",
        why="Shares of a gradient's elements that are zero, or subnormal, only because of half "
        "precision: many zeros mean that the loss scale is too low. Share of the weights with a "
        "gradient that a step left unchanged, in every precision: near 1, training stands still.",
        queries=[
            Query(expr='genesis_gradient_underflow_ratio{agent=~"$agent"} >= 0', legend="{{kind}}"),
            Query(
                expr='genesis_update_stagnation_ratio{agent=~"$agent"} >= 0',
                legend="weights unchanged",
            ),
        ],
        unit="percentunit",
    ),
    Lines(
        title="Cost of the telemetry",
        why="Share of the time of the steps that repeating steps takes. The worker keeps "
        "measurements below 1 % of each attempt; diagnoses of many overflows come on top.",
        queries=[
            Query(
                expr='rate(genesis_telemetry_seconds_total{agent=~"$agent"}[$__rate_interval]) '
                "/ ignoring (precision) sum without (precision) "
                "(rate(genesis_training_step_duration_seconds_sum"
                '{agent=~"$agent"}[$__rate_interval])) > 0',
                legend="repeated steps",
            )
        ],
        unit="percentunit",
    ),
    Lines(
        title="Non-finite losses",
        why="Not overflows: a smaller scale does not help. Check the data and the model.",
        queries=[
            Query(
                expr='increase(genesis_nonfinite_loss_total{agent=~"$agent"}[$__rate_interval])'
                " > 0",
                legend="NaN or infinite",
            )
        ],
        nothing="None: every loss was finite",
        bars=True,
    ),
    Lines(
        title="Gradient norm",
        why="The last finite norm, unscaled and before clipping.",
        queries=[Query(expr='genesis_training_grad_norm{agent=~"$agent"}', legend="norm")],
    ),
    Lines(
        title="Throughput",
        why="Samples and optimizer steps per second.",
        queries=[
            Query(
                expr='rate(genesis_training_samples_total{agent=~"$agent"}[$__rate_interval])',
                legend="samples",
            ),
            Query(
                expr='sum (rate(genesis_training_steps_total{agent=~"$agent"}[$__rate_interval]))',
                legend="steps",
            ),
        ],
        unit="ops",
        log_base=10,
    ),
    Lines(
        title="Step duration",
        why="Mean and 95th percentile, by the precision in force.",
        queries=[
            Query(
                expr="sum by (precision) (rate(genesis_training_step_duration_seconds_sum"
                '{agent=~"$agent"}[$__rate_interval])) / (sum by (precision) '
                "(rate(genesis_training_step_duration_seconds_count"
                '{agent=~"$agent"}[$__rate_interval])) > 0)',
                legend="{{precision}}, mean",
            ),
            Query(
                expr="histogram_quantile(0.95, sum by (le, precision) "
                "(rate(genesis_training_step_duration_seconds_bucket"
                '{agent=~"$agent"}[$__rate_interval]))) >= 0',
                legend="{{precision}}, 95 %",
            ),
        ],
        unit="s",
    ),
    Lines(
        title="GPU memory",
        why="Peak memory of the last steps.",
        queries=[
            Query(expr='genesis_cuda_memory_allocated_bytes{agent=~"$agent"} > 0', legend="peak")
        ],
        nothing="No data: needs a GPU",
        unit="bytes",
    ),
    Timeline(
        title="The guard",
        why="Tripped: the guard keeps the agent in FP32. Probation: half precision on trial.",
        queries=[
            Query(
                expr='max by (agent) (genesis_guard_state{agent=~"$agent", state="watching"} '
                'or genesis_guard_state{agent=~"$agent", state="tripped"} * 2 '
                'or genesis_guard_state{agent=~"$agent", state="probation"} * 3)',
                legend="{{agent}}",
            )
        ],
        states=GUARD_STATES,
    ),
    Lines(
        title="Modules raised to FP32",
        why="Of a tripped guard: FP32 for these modules only. 0 beside FP32: all of the model.",
        queries=[
            Query(expr='genesis_raised_modules{agent=~"$agent"}', legend="{{agent}}"),
            Query(
                expr='increase(genesis_rung_searches_total{agent=~"$agent"}[$__rate_interval]) > 0',
                legend="{{agent}}, search: {{cause}}",
            ),
        ],
    ),
    Lines(
        title="Age of the newest checkpoint",
        why="While a run trains: the work that is lost if its worker dies now.",
        queries=[
            Query(
                expr='time() - (genesis_last_checkpoint_timestamp_seconds{agent=~"$agent"} > 0)',
                legend="age",
            )
        ],
        unit="s",
    ),
    Lines(
        title="Checkpoint duration",
        why="Mean time to write a checkpoint.",
        queries=[
            Query(
                expr="rate(genesis_checkpoint_duration_seconds_sum"
                '{agent=~"$agent"}[$__rate_interval]) '
                "/ rate(genesis_checkpoint_duration_seconds_count"
                '{agent=~"$agent"}[$__rate_interval])',
                legend="duration",
            )
        ],
        unit="s",
    ),
    Lines(
        title="Checkpoint size",
        why="Size of the newest checkpoint.",
        queries=[Query(expr='genesis_last_checkpoint_bytes{agent=~"$agent"}', legend="size")],
        unit="bytes",
    ),
    Lines(
        title="Training time of a run",
        why="Mean over the runs that ended, without collection and evaluation.",
        queries=[
            Query(
                expr='rate(genesis_training_duration_seconds_sum{agent=~"$agent"}[$__rate_interval])'
                " / rate(genesis_training_duration_seconds_count"
                '{agent=~"$agent"}[$__rate_interval])',
                legend="training",
            )
        ],
        unit="s",
    ),
    Lines(
        title="Predictions asked for",
        why="Requests to predict, rank or decide: answered by a model or without one, refused, "
        "failed.",
        queries=[
            Query(
                expr='sum by (outcome) (rate(genesis_predictions_total{agent=~"$agent"}'
                "[$__rate_interval]))",
                legend="{{outcome}}",
            )
        ],
    ),
    Lines(
        title="Time of a prediction",
        why="Time that the predictor needs for 99 of 100 such requests.",
        queries=[
            Query(
                expr="histogram_quantile(0.99, sum by (le) (rate(genesis_prediction_seconds_bucket"
                '{agent=~"$agent"}[$__rate_interval])))',
                legend="99 %",
            )
        ],
        unit="s",
    ),
    Lines(
        title="Decisions and outcomes",
        why="What running agents report: decisions, own choices, transitions, and what came of "
        "decisions.",
        queries=[
            Query(
                expr='sum by (kind) (rate(genesis_decisions_total{agent=~"$agent"}'
                "[$__rate_interval]))",
                legend="{{kind}}",
            ),
            Query(
                expr='sum by (state) (rate(genesis_outcomes_total{agent=~"$agent"}'
                "[$__rate_interval]))",
                legend="outcome {{state}}",
            ),
        ],
    ),
    Lines(
        title="Log loss of predictions",
        why="Of the last outcomes, beside what it was on held-out groups and what the base rate "
        "has there, in nats.",
        queries=[
            Query(expr='genesis_prediction_log_loss{agent=~"$agent"}', legend="{{of}}"),
        ],
    ),
    Lines(
        title="Inputs and calibration",
        why="Gap between predicted and observed success; share of outcomes outside their 90 % "
        "intervals; largest shift of an input in standard deviations.",
        queries=[
            Query(
                expr='genesis_prediction_calibration_error{agent=~"$agent"}',
                legend="calibration error",
            ),
            Query(
                expr='1 - genesis_prediction_interval_coverage_ratio{agent=~"$agent"}',
                legend="outside the interval",
            ),
            Query(expr='genesis_prediction_input_drift{agent=~"$agent"}', legend="input drift"),
        ],
    ),
    Lines(
        title="Worth of the model",
        why="Estimated gain in reward over the agent's own order, and the evidence that the model "
        "became worse: at 1 the guard takes it back.",
        queries=[
            Query(expr='genesis_prediction_gain{agent=~"$agent"}', legend="gain"),
            Query(expr='genesis_model_guard_evidence{agent=~"$agent"}', legend="evidence"),
            Query(
                expr='increase(genesis_models_taken_back_total{agent=~"$agent"}[$__rate_interval])',
                legend="taken back",
            ),
        ],
    ),
)

"""The metrics of dtype-rlhf by their names, each with its exact definition.

Values are computed in the type that is measured; statistics of them are float64 over valid tokens.
"""

from infrastructure.precision_lab.metrics.accumulation import measure_accumulated_error
from infrastructure.precision_lab.metrics.clipping import measure_clipping
from infrastructure.precision_lab.metrics.errors import measure_error
from infrastructure.precision_lab.metrics.gradients import gradient_norm
from infrastructure.precision_lab.metrics.kl import exact_kl_penalty_mean, measure_kl
from infrastructure.precision_lab.metrics.resolution import measure_reward_resolution
from infrastructure.precision_lab.metrics.valid import MetricError
from infrastructure.precision_lab.metrics.values import measure_values, stagnation_rate

__all__ = [
    "MetricError",
    "exact_kl_penalty_mean",
    "gradient_norm",
    "measure_accumulated_error",
    "measure_clipping",
    "measure_error",
    "measure_kl",
    "measure_reward_resolution",
    "measure_values",
    "stagnation_rate",
]

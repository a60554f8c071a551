import math

import torch
from torch.nn import Parameter

from infrastructure.precision_lab.metrics.gradients import gradient_norm


def _parameter(*gradient: float) -> Parameter:
    parameter = Parameter(torch.zeros(len(gradient)))
    parameter.grad = torch.tensor(gradient)
    return parameter


def test_the_norm_is_over_all_parameters_that_have_a_gradient() -> None:
    parameters = [_parameter(2.0, 3.0), Parameter(torch.ones(4)), _parameter(6.0)]
    assert gradient_norm(parameters) == 7.0
    assert gradient_norm(parameters, scale=2.0) == 3.5
    assert gradient_norm([]) == 0.0


def test_finite_gradients_have_a_finite_norm() -> None:
    assert math.isclose(gradient_norm([_parameter(3e30, 4e30)]), 5e30, rel_tol=1e-6)
    assert gradient_norm([_parameter(math.inf, 1.0)]) == math.inf
    assert math.isnan(gradient_norm([_parameter(math.nan)]))

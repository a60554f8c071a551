"""iCEM: the cross-entropy method with coloured noise and kept elites (Pinneri et al. 2020).

arXiv:2008.06389. Actions are scaled to [-1, 1]. Shapes: H steps, A dimensions of the action, N
plans.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from infrastructure.world_model.planning.returns import Scores

SHRINK = 1.25
"""Factor by which each iteration has fewer plans."""
KEPT_ELITES = 0.3
MOMENTUM = 0.1
FIRST_DEVIATION = 0.5
MIN_PLANS_PER_ELITE = 2

Evaluate = Callable[[Tensor, bool], Scores | None]
"""Scores plans ``[N, H, A]``; None if the deadline passed meanwhile, which it may if the flag is
set."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Result of a search.

    Attributes:
        best: Best plan, ``[H, A]`` float64.
        mean: Centre of the last distribution, ``[H, A]``: where the next search begins.
        elites: Best plans of the last iteration, ``[K, H, A]``, best first.
        expected_return, sd: Those of the best plan.
        cut: Whether the deadline ended the search.
    """

    best: Tensor
    mean: Tensor
    elites: Tensor
    expected_return: float
    sd: float
    cut: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Icem:
    """A search over plans of bounded actions.

    Attributes:
        horizon: Steps of a plan.
        width: Dimensions of an action.
        samples, iterations, elites, noise_colour: See `PlanSettings`.
    """

    horizon: int
    width: int
    samples: int
    iterations: int
    elites: int
    noise_colour: float

    def search(
        self,
        evaluate: Evaluate,
        generator: torch.Generator,
        previous: Found | None = None,
        in_time: Callable[[], bool] = lambda: True,
    ) -> Found:
        """Search for the best plan.

        Args:
            evaluate: Scores plans. The first iteration always ends.
            generator: CPU generator of the noise.
            previous: Result of the step before: shifted by one step, it is where this one begins.
            in_time: Asked before each iteration but the first; the search ends at False.
        """
        mean_HA = torch.zeros(self.horizon, self.width, dtype=torch.float64)
        kept_KHA = mean_HA.new_empty(0, self.horizon, self.width)
        if previous is not None:
            mean_HA = _shifted(previous.mean)
            count = max(1, int(KEPT_ELITES * self.elites))
            kept_KHA = _shifted(previous.elites[:count])
        deviation_HA = torch.full_like(mean_HA, FIRST_DEVIATION)
        best: Found | None = None
        for iteration in range(self.iterations):
            if best is not None and not in_time():
                break
            fewest = MIN_PLANS_PER_ELITE * self.elites
            count = max(int(self.samples * SHRINK**-iteration), min(fewest, self.samples))
            noise_NHA = coloured_noise(
                (count, self.horizon, self.width), self.noise_colour, generator
            )
            plans = [(mean_HA + deviation_HA * noise_NHA).clamp_(-1.0, 1.0), kept_KHA]
            if iteration == self.iterations - 1:
                plans.append(mean_HA[None])
            plans_NHA = torch.cat(plans)
            scores = evaluate(plans_NHA, best is not None)
            if scores is None:
                break
            order_K = scores.score.topk(min(self.elites, len(plans_NHA))).indices
            elites_KHA = plans_NHA[order_K]
            mean_HA = MOMENTUM * mean_HA + (1 - MOMENTUM) * elites_KHA.mean(0)
            spread_HA = elites_KHA.std(0, correction=0)
            deviation_HA = MOMENTUM * deviation_HA + (1 - MOMENTUM) * spread_HA
            kept_KHA = elites_KHA[: max(1, int(KEPT_ELITES * self.elites))]
            first = int(order_K[0])
            # Kept elites take part again, so that the best of an iteration is the best so far.
            best = Found(
                best=plans_NHA[first],
                mean=mean_HA,
                elites=elites_KHA,
                expected_return=float(scores.mean[first]),
                sd=float(scores.sd[first]),
                cut=False,
            )
        else:
            if best is not None:
                return best
        if best is None:
            raise RuntimeError("a search needs an iteration that ends")
        return replace(best, cut=True)


def coloured_noise(size: tuple[int, int, int], colour: float, generator: torch.Generator) -> Tensor:
    """Draw noise whose power falls with the frequency f as ``f ** -colour``.

    After Timmer and König (1995), as iCEM draws it: unit variance, sequences along the steps.

    Args:
        size: Sizes ``(N, H, A)``.

    Returns:
        ``[N, H, A]`` float64.
    """
    plans, steps, width = size
    if colour == 0.0 or steps == 1:
        return torch.randn(size, generator=generator, dtype=torch.float64)
    frequency_F = torch.fft.rfftfreq(steps, dtype=torch.float64)
    frequency_F[0] = frequency_F[1]
    scale_F = frequency_F ** (-colour / 2)
    weight_F = scale_F[1:].clone()
    if steps % 2 == 0:
        weight_F[-1] *= 0.5
    sigma = 2 * float(weight_F.square().sum().sqrt()) / steps
    parts = torch.randn(2, plans, width, len(scale_F), generator=generator, dtype=torch.float64)
    parts[1, ..., 0] = 0.0
    parts[0, ..., 0] *= 2**0.5
    if steps % 2 == 0:
        parts[1, ..., -1] = 0.0
        parts[0, ..., -1] *= 2**0.5
    spectrum = torch.complex(parts[0], parts[1]) * scale_F
    noise_NAH: Tensor = torch.fft.irfft(spectrum, n=steps, dim=-1)
    return noise_NAH.div_(sigma).transpose(1, 2)


def _shifted(plans_HA: Tensor) -> Tensor:
    """Drop the first step and repeat the last, ``[..., H, A]``."""
    return torch.cat([plans_HA[..., 1:, :], plans_HA[..., -1:, :]], dim=-2)

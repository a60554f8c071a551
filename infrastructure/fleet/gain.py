"""A short measurement: does it pay to step these members together?

Stepped together or one after the other, a member gets the same bits. So a training's own steps are
timed, some of them each way: nothing is copied, repeated or disturbed, and the measurement costs
only the time by which the slower way is slower.
"""

from __future__ import annotations

import statistics

WORTHWHILE = 1.05
"""Together must be this many times as fast as one after the other."""

MEASURED_ROUNDS = 23
"""Rounds until the measurement is over: ten of them one after the other."""

_WARM_UP_ROUNDS = 3  # together: they make optimizer state, build the stacks, try the products
_BLOCK = 2  # rounds in a row that are timed as one


class GainMeasurement:
    """Decides round by round how members are stepped: both ways first, then the faster one.

    Attributes:
        ratio: Time of one after the other divided by the time of together, the median of five
            pairs of blocks; None until the measurement is over.
    """

    def __init__(self) -> None:
        self.ratio: float | None = None
        self._rounds = 0
        self._blocks: list[float] = []  # seconds: one after the other, together, in turn

    @property
    def step_together(self) -> bool:
        """Whether the next round is to be stepped together."""
        if self.ratio is not None:
            return self.ratio >= WORTHWHILE
        timed = self._rounds - _WARM_UP_ROUNDS
        return timed < 0 or timed // _BLOCK % 2 == 1

    def record(self, seconds: float) -> None:
        """Take the time of the round that `step_together` has decided on."""
        timed = self._rounds - _WARM_UP_ROUNDS
        self._rounds += 1
        if self.ratio is not None or timed < 0:
            return
        if timed % _BLOCK == 0:
            self._blocks.append(0.0)
        self._blocks[-1] += seconds
        if self._rounds == MEASURED_ROUNDS:
            pairs = zip(self._blocks[::2], self._blocks[1::2], strict=True)
            self.ratio = statistics.median(alone / max(together, 1e-9) for alone, together in pairs)

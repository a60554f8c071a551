"""Repair of a whole file: one suspicious function after the other, until all tests pass."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable

from agents.se_darwin.proposals.shares import combined
from agents.se_darwin.result import EvolutionResult
from agents.se_darwin.solution.evolved_program import unified_diff
from agents.se_darwin.solution.localization import Localization, SuspiciousFunction
from agents.se_darwin.solution.request import EvolutionRequest

_SHARE = 0.5  # of what is left, for each function but the last
_COUNTED = ("mean_score", "candidate_edits", "timeout_seconds")  # not sums over all searches


class WholeFile:
    """Repairs functions that failing tests visit, the most suspicious first.

    Each may take half of the time, the candidates and the proposals that are left, the last one all
    of them. After a repair all tests of the file run again, and those that still fail go on.

    Args:
        request: Request without a function.
        timeout_seconds: Seconds that the given program may take for all its tests.
        repair: Repairs the function of a request.
    """

    def __init__(
        self,
        request: EvolutionRequest,
        timeout_seconds: float,
        repair: Callable[[EvolutionRequest], Awaitable[EvolutionResult]],
    ) -> None:
        self._request, self._timeout, self._repair = request, timeout_seconds, repair
        self._tried: dict[str, str] = {}
        self._repaired: list[EvolutionResult] = []
        self._others: list[EvolutionResult] = []
        self._code = request.code

    async def result(self) -> EvolutionResult:
        """Return the result for the file: its tests decide whether it is repaired.

        Raises:
            ValueError: The tests cannot be used, all pass, or no function could be tried.
        """
        started = time.monotonic()
        seconds = self._request.max_seconds or math.inf
        found = await self._localize()
        found.require_failures()
        evaluations, proposals = self._request.max_evaluations, self._request.max_proposals
        while function := self._next(found):
            left = seconds - (time.monotonic() - started)
            if left <= 0.0 or evaluations <= 0:
                break
            share = 1.0 if self._is_last(function, found) else _SHARE
            changes: dict[str, object] = {
                "code": self._code,
                "function": function.name,
                "max_seconds": None if left == math.inf else share * left,
                "max_evaluations": max(1, math.ceil(share * evaluations)),
                "max_proposals": max(1, math.ceil(share * proposals)),
            }
            try:
                result = await self._repair(self._request.model_copy(update=changes))
            except ValueError as error:  # its tests cannot be run with that function
                self._tried[function.name] = f"{function}: not tried: {error}"
                continue
            evaluations -= int(result["pool_statistics"]["evaluations"])
            proposals -= max((each["proposed"] for each in result["proposers"]), default=0)
            is_repaired = result["success"] and bool(result["best_trajectory"]["edits"])
            outcome = "repaired" if is_repaired else f"not repaired ({result['ended']})"
            self._tried[function.name] = f"{function}: {outcome}"
            (self._repaired if is_repaired else self._others).append(result)
            if is_repaired:
                self._code = result["best_trajectory"]["code_after"]
                found = await self._localize()
            if all(found.passed) or result["ended"] == "stopped":
                break
        return self._described(found, time.monotonic() - started)

    async def _localize(self) -> Localization:
        request = self._request.model_copy(update={"code": self._code})
        return await asyncio.to_thread(request.localize, self._timeout)

    def _next(self, found: Localization) -> SuspiciousFunction | None:
        """Return the most suspicious function that was not tried."""
        return next((each for each in found.functions if each.name not in self._tried), None)

    def _is_last(self, function: SuspiciousFunction, found: Localization) -> bool:
        return all(each.name in {*self._tried, function.name} for each in found.functions)

    def _described(self, found: Localization, seconds: float) -> EvolutionResult:
        """Return the result of the search nearest to a repair, or what all repairs do together."""
        parts = [*self._others, *self._repaired]
        if not parts:
            reasons = "; ".join(self._tried.values()) or "no time was left"
            raise ValueError(f"no function could be tried: {reasons}")
        result = max(self._others, key=lambda part: part["best_score"], default=parts[-1])
        result["total_time"], result["functions"] = seconds, list(self._tried.values())
        for key in result["pool_statistics"].keys() - set(_COUNTED):
            result["pool_statistics"][key] = sum(part["pool_statistics"][key] for part in parts)
        result["proposers"] = combined(part["proposers"] for part in parts)
        if not self._repaired:
            return result
        programs = [part["best_trajectory"] for part in self._repaired]
        score = sum(found.passed) / len(found.passed)
        result["success"] = all(found.passed)
        result["ended"] = "success" if result["success"] else result["ended"]
        if not result["success"] and result["ended"] == "success":
            result["ended"] = "exhausted" if not self._next(found) else "seconds"
        result["best_score"] = score
        result["best_trajectory"] = {
            **programs[-1],
            "code_after": self._code,
            "diff": unified_diff(self._request.code, self._code, self._request.path),
            "edits": [edit for program in programs for edit in program["edits"]],
            "lineage": [step for program in programs for step in program["lineage"]],
            "success_score": score,
            "test_results": list(found.passed),
        }
        result["failing"] = found.failing
        result["left_out"] = list(found.left_out)
        certainties = [part["certainty"] for part in self._repaired if part["certainty"]]
        certainties.sort(key=lambda certainty: certainty["level"] == "well supported")
        result["certainty"] = certainties[0] if result["success"] and certainties else None
        return result

"""The published models: loaded when they are asked for, switched when they change.

The one in use is the one in the agent's folder ``published/``. A model that is damaged costs its
agent alone: the one before answers on, or none does, with a warning that says why.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from genesis_fp16.models import Mark, load_published, mark_of
from genesis_fp16.predictor.problems import ProblemError, wrong
from infrastructure.agent_contract.transition import TransitionSpec
from infrastructure.trajectories.column_checks import inputs_fit
from infrastructure.trajectories.schema import Values, input_problem, is_undeclared, outcome_problem
from infrastructure.world_model import WorldModel
from infrastructure.world_model.model_files import BuildNetwork
from infrastructure.world_model.scores import score_actions

NEW_SECONDS = 0.5  # in which a new version is loaded while the one before still answers
_RETRY_SECONDS = 0.05
_MOST_SHOWN = 20  # positions of actions in a warning
_MISSPELT = 0.8  # similarity of names, as `difflib` counts it
_FAR_OUTSIDE = (
    "a number is far outside the training data, so the prediction is close to the base rate"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedModel:
    """What answers for an agent.

    Attributes:
        agent: Name of the agent.
        model: Its published model; None if there is none that this process can use.
        version: Id of the version; None without a model.
        problem: Why the published model is not the one that answers; empty if it is.
        own_network: Whether the model's network is the agent's own, which this process must not
            build.
        spec: Specification of the published model; None without one.
        mark: State of the files.
    """

    agent: str
    model: WorldModel | None = None
    version: str | None = None
    problem: str = ""
    own_network: bool = False
    spec: TransitionSpec | None = None
    mark: Mark | None = None

    def check(self, observation: Values, actions: Sequence[Values], path: str = "actions") -> None:
        """Check fields against the model's spec; without a model, all fit.

        Raises:
            ProblemError: A field is missing or of a wrong type; it is named.
        """
        if self.model is None or inputs_fit(self.model.spec, [observation], actions):
            return
        spec = self.model.spec
        for position, action in enumerate(actions):
            if problem := input_problem(spec, observation, action):
                part, name = _field_at_fault(spec, problem)
                where = "observation" if part == "observation" else f"{path}.{position}"
                field = f"{where}.{name}".removesuffix(".")
                raise wrong(field, problem)

    def check_outcome(
        self, next_observation: Values, reward: float | None, path: str = ""
    ) -> list[str]:
        """Check what was reported against the model's targets; without a model, all fits.

        Targets may be missing.

        Args:
            path: Of the two in the request; it ends with a dot, or is empty.

        Returns:
            Warnings about fields that seem to be misspelt targets, and about labels that the model
            does not know: the agent may declare more by now.

        Raises:
            ProblemError: A target is of a wrong type; it is named.
        """
        if self.spec is None:
            return []
        spec, warnings = self.spec, list[str]()
        for name, field in spec.targets.items():
            value = reward if name == "reward" else next_observation.get(name)
            if value is None or (problem := outcome_problem(field, value)) is None:
                continue
            where = f"{path}{name if name == 'reward' else f'next_observation.{name}'}"
            if not is_undeclared(field, value):
                raise wrong(where, problem)
            warnings.append(f"{where} {problem}; it counts for a model that declares it")
        absent = [name for name in spec.targets if name not in next_observation]
        for name in next_observation.keys() - spec.targets.keys() - spec.observation.keys():
            for meant in get_close_matches(name, absent, n=1, cutoff=_MISSPELT):
                where = f"{path}next_observation.{name:.60}"
                warnings.append(f"{where} is not a target of the model: did you mean {meant}?")
        return sorted(warnings)

    def rank(self, observation: Values, actions: Sequence[Values]) -> dict[str, Any]:
        """Answer of ``/rank``, without the agent's name.

        Raises:
            ProblemError: A field is missing or of a wrong type.
        """
        self.check(observation, actions)
        count, warnings = len(actions), self._warnings()
        fitted = self.model.fitted_model if self.model is not None else None
        if fitted is None:
            nothing = [None] * count
            return {
                "version": None,
                "order": list(range(count)),
                "chances": nothing,
                "improvements": nothing,
                "confidence": [0.0] * count,
                "warnings": warnings,
            }
        with _refusing():
            scores = score_actions(fitted, observation, actions)
        warnings += [
            _of_actions(rows, text, count) for text, rows in scores.remarks.items() if rows
        ]
        if scores.unfamiliar:
            warnings.append(_of_actions(scores.unfamiliar, _FAR_OUTSIDE, count))
        return {
            "version": self.version,
            "order": scores.order,
            "chances": scores.chances or [None] * count,
            "improvements": scores.improvements or [None] * count,
            "confidence": scores.confidence,
            "warnings": warnings,
        }

    def predict(self, observation: Values, actions: Sequence[Values], path: str) -> dict[str, Any]:
        """Answer of ``/predict``, without the agent's name.

        Raises:
            ProblemError: A field is missing or of a wrong type.
        """
        self.check(observation, actions, path)
        if self.model is None:
            predictions: list[dict[str, Any]] = [_NO_PREDICTION] * len(actions)
        else:
            with _refusing():
                made = self.model.predict_batch([observation] * len(actions), actions)
            predictions = [asdict(prediction) for prediction in made]
        return {
            "version": self.version,
            "predictions": predictions,
            "warnings": self._warnings(),
        }

    def _warnings(self) -> list[str]:
        warnings = []
        if self.model is None:
            reason = self.problem or "no model is published yet"
            warnings.append(
                f"{reason}; the order is the given one, and the confidence is 0: nothing is known"
            )
        elif self.problem:
            warnings.append(f"version {self.version} answers: {self.problem}")
        fitted = self.model.fitted_model if self.model is not None else None
        if fitted is not None and fitted.policy_shift_warning:
            caution = fitted.policy_shift_warning
            warnings.append(f"not to be trusted under another policy: {caution}")
        return warnings


_NO_PREDICTION: dict[str, Any] = {
    "next_state": {},
    "success_probability": None,
    "expected_improvement": None,
    "confidence": 0.0,
    "probabilities": {},
    "deviations": {},
    "intervals": {},
    "reasoning": "no model",
}


class PublishedModels:
    """The published models of all agents in a home, a bounded number of them in memory.

    Args:
        home: GENESIS_HOME.
        most: Largest number of models in memory; the least recently used one has to go.
        notice: Receives what the log should show: event and fields.
        clock: Unix time in seconds.
        build_network: Builds the network of an agent that has its own, if this is its own process.
    """

    def __init__(
        self,
        home: Path,
        most: int,
        notice: Callable[..., None],
        clock: Callable[[], float] = time.time,
        build_network: BuildNetwork | None = None,
    ) -> None:
        self._agents, self._most, self._notice, self._clock = home / "agents", most, notice, clock
        self._build_network = build_network
        self._served: OrderedDict[str, ServedModel] = OrderedDict()
        self._loading: dict[str, asyncio.Task[ServedModel]] = {}
        self._thread = ThreadPoolExecutor(1, "models")

    def __len__(self) -> int:
        """Number of agents whose models are in memory, or known to be missing."""
        return len(self._served)

    async def get(self, agent: str) -> ServedModel:
        """What answers for *agent* now.

        For `NEW_SECONDS` after a publication the version before may still answer, while the new
        one is loaded.
        """
        served, mark = self._served.get(agent), mark_of(self._agents / agent)
        if served is not None:
            self._served.move_to_end(agent)
            if served.mark == mark:
                return served
        loading = self._loading.get(agent)
        if loading is None:
            loading = asyncio.create_task(self._load(agent, served))
            self._loading[agent] = loading
            loading.add_done_callback(lambda _: self._loading.pop(agent))
        if served is not None and served.model is not None and self._is_new(mark):
            return served
        return await asyncio.shield(loading)

    def describe(self) -> tuple[int, list[str]]:
        """Number of agents in memory, and those with networks of their own; for any thread."""
        served = list(self._served.values())
        return len(served), [each.agent for each in served if each.own_network]

    def peek(self, agent: str) -> ServedModel | None:
        """What is in memory for *agent*; None if nothing is."""
        return self._served.get(agent)

    def close(self) -> None:
        """End the thread that loads."""
        self._thread.shutdown(cancel_futures=True)

    async def _load(self, agent: str, before: ServedModel | None) -> ServedModel:
        loop, folder = asyncio.get_running_loop(), self._agents / agent
        while True:
            load = partial(_load_model, agent, folder, self._build_network)
            loaded, recorded = await loop.run_in_executor(self._thread, load)
            if before is None or recorded or not self._is_new(loaded.mark):
                break
            await asyncio.sleep(_RETRY_SECONDS)  # its version is being recorded
        if loaded.own_network:
            pass  # its own process reports
        elif loaded.problem and (before is None or before.problem != loaded.problem):
            self._notice("published_model_unusable", agent=agent, problem=loaded.problem)
        if (
            loaded.problem
            and not loaded.own_network
            and before is not None
            and before.model is not None
        ):
            loaded = replace(before, mark=loaded.mark, problem=loaded.problem)
        elif before is not None and before.version != loaded.version:
            change = {"before": before.version or "none", "now": loaded.version or "none"}
            self._notice("model_switched", agent=agent, **change)
        self._served[agent] = loaded
        self._served.move_to_end(agent)
        while len(self._served) > self._most:
            self._served.popitem(last=False)
        return loaded

    def _is_new(self, mark: Mark | None) -> bool:
        if mark is None:
            return False
        age = self._clock() - mark.changed_ns / 1e9
        return 0 <= age < NEW_SECONDS  # a clock that was set back dates files into the future


def _load_model(
    agent: str, folder: Path, build_network: BuildNetwork | None
) -> tuple[ServedModel, bool]:
    """The published model, and whether its version is recorded."""
    loaded = load_published(folder, build_network)
    served = ServedModel(
        agent=agent,
        model=loaded.model,
        version=loaded.version,
        problem=loaded.problem,
        own_network=loaded.own_network,
        spec=loaded.spec,
        mark=loaded.mark,
    )
    return served, loaded.is_recorded


def _field_at_fault(spec: TransitionSpec, problem: str) -> tuple[str, str]:
    """Part and name of the field that *problem*, of `input_problem`, is about."""
    parts: Mapping[str, Mapping[str, object]]
    parts = {"observation": spec.observation, "action": spec.action}
    for part, fields in parts.items():
        for name in fields:
            if problem.startswith(f"{part} {name!r} "):
                return part, name
    return "action", ""


@contextmanager
def _refusing() -> Iterator[None]:
    """Turn what a model refuses into an answer to its client."""
    try:
        yield
    except ValueError as error:
        raise ProblemError(422, f"the model refuses the values: {error}") from error


def _of_actions(positions: Sequence[int], text: str, count: int) -> str:
    """*text* with the actions, of *count*, that it is about."""
    if len(positions) == count:
        return text
    shown = ", ".join(map(str, positions[:_MOST_SHOWN]))
    return f"actions {shown}{', ...' if len(positions) > _MOST_SHOWN else ''}: {text}"

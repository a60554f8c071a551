"""A prior: a world model that ships with an agent, in use until a run publishes a better one.

Its folder holds two models and ``prior.json``. ``model`` is trained on all groups but those that
calibrate it. ``twin`` is trained alike, but without the test groups of the split that every run
makes: a run's model cannot be compared with a model that has seen the groups of the comparison, so
the publication gate compares it with the twin.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from infrastructure.agent_contract.transition import Transition, TransitionSpec
from infrastructure.events import PrecisionState
from infrastructure.files import hash_bytes, hash_file, read_json, write_json
from infrastructure.world_model import EnsembleNetwork, ModelFileError, WorldModel
from infrastructure.world_model.fitting import FittedModel, prepare_training_data
from infrastructure.world_model.fitting.scoring import measure
from infrastructure.world_model.fitting.training_data import encode_split
from infrastructure.world_model.model_files import BuildNetwork

FORMAT = 1
_INDEX = "prior.json"
_MOST_INDEX_BYTES = 1 << 24
_MODELS = ("model", "twin")
_FP32 = PrecisionState(requested="fp32", effective="fp32", reason="agent")


class PriorError(ValueError):
    """A prior is missing, damaged or of another version; the message names problem and remedy."""

    def __init__(self, path: Path, problem: str, remedy: str) -> None:
        super().__init__(f"the prior cannot be used: {path}: {problem}; {remedy}")
        self.path = path


@dataclass(frozen=True, kw_only=True, slots=True)
class Prior:
    """A prior whose files are all there, with the hashes in ``prior.json``.

    Attributes:
        folder: Folder of the prior.
        files: Hash of each file of the models, by its path below *folder*.
        command: Command that builds it again.
        twin_groups: Groups that the twin was trained or calibrated on.
    """

    folder: Path
    files: Mapping[str, str]
    command: str
    twin_groups: frozenset[str]

    @classmethod
    def open(cls, folder: Path) -> Prior:
        """Read ``prior.json`` and check the hashes of all files.

        Raises:
            PriorError: A file is missing, damaged or of another format.
        """
        path, reinstall = folder / _INDEX, "install the distribution that contains it again"
        try:
            content = read_json(path, limit=_MOST_INDEX_BYTES, allow_nan=True)
            index = cast("Mapping[str, Any]", content)
            if index["format"] != FORMAT:
                problem = f"its format is {index['format']!r}, expected {FORMAT}"
                raise PriorError(path, problem, reinstall)
            prior = cls(
                folder=folder,
                files={str(name): str(digest) for name, digest in index["files"].items()},
                command=str(index["command"]),
                twin_groups=frozenset(map(str, index["groups"]["twin"])),
            )
        except OSError as error:
            raise PriorError(path, str(error.strerror), reinstall) from None
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            if isinstance(error, PriorError):
                raise
            raise PriorError(path, f"it is truncated or altered ({error!r})", reinstall) from None
        for name, digest in prior.files.items():
            try:
                actual = hash_file(folder / name).sha256
            except OSError as error:
                raise PriorError(folder / name, str(error.strerror), reinstall) from None
            except ValueError as error:
                problem = f"it names a file that cannot exist, {name!r} ({error})"
                raise PriorError(path, problem, reinstall) from None
            if actual != digest:
                problem = f"its hash differs from the one in {_INDEX}"
                raise PriorError(folder / name, problem, reinstall)
        return prior

    @property
    def digest(self) -> str:
        """Hash that identifies the two models."""
        return hash_bytes(json.dumps(self.files, sort_keys=True).encode()).sha256

    def load(
        self,
        which: Literal["model", "twin"],
        spec: TransitionSpec,
        build_network: BuildNetwork = EnsembleNetwork,
    ) -> WorldModel:
        """Load one of the two models.

        Args:
            which: ``model`` to use, ``twin`` to compare with.
            spec: Spec of the agent today.
            build_network: See `WorldModel.load`.

        Raises:
            PriorError: It was built for another spec, or this version cannot load it.
        """
        remedy = f"build it again: {self.command}"
        path = self.folder / which
        try:
            model = WorldModel.load(path, build_network)
        except (ModelFileError, OSError) as error:
            raise PriorError(path, str(error), remedy) from None
        if model.spec != spec:
            problem = "it was built for another version of the agent's fields"
            raise PriorError(path, problem, remedy)
        return model


def build_prior(  # noqa: PLR0913 - each is a property of the prior
    folder: Path,
    spec: TransitionSpec,
    transitions: Sequence[Transition],
    *,
    epochs: int,
    members: int = 5,
    seed: int,
    command: str,
    notes: Mapping[str, object],
    as_used: Sequence[Transition] = (),
) -> dict[str, float]:
    """Train model and twin in FP32, and replace the prior in *folder*.

    Weights are stored in FP16. Equal input gives the same bytes on one machine with one version of
    torch and one number of threads.

    Args:
        folder: Folder of the prior; its subfolders ``model`` and ``twin`` are replaced.
        spec: Spec of the agent.
        transitions: Experience to learn from.
        epochs: Passes over the training groups.
        members: Number of networks in each ensemble.
        seed: Seed of weights and shuffles.
        command: Command that calls this function, for the people who must build it again.
        notes: Further entries of ``prior.json``, such as the origin of the experience.
        as_used: Those of the *transitions* whose actions were chosen as the prior will choose them.
            They alone calibrate it and measure the twin, so that probabilities are right in use;
            none if all were chosen alike.

    Returns:
        Metrics of the twin on the groups that it has not seen.

    Raises:
        InsufficientDataError: See `WorldModel.fit`.
        OSError: Writing failed.
        ValueError: A weight is beyond the range of FP16.
    """
    twin_data = prepare_training_data(spec, transitions)
    split = {part: list(rows.transitions) for part, rows in twin_data.parts.items()}
    calibration = split["calibration"]
    learned = {"model": split["train"] + split["test"], "twin": split["train"]}
    data = {
        "twin": twin_data,
        # Nothing is held back to test it with, so its metrics would be of data it is fitted on.
        "model": encode_split(
            spec, {"train": learned["model"], "calibration": calibration, "test": calibration}
        ),
    }
    used = {id(transition) for transition in as_used or transitions}
    deployed = {
        part: [transition for transition in rows if id(transition) in used]
        for part, rows in split.items()
    }
    metrics: dict[str, float] = {}
    for which in reversed(_MODELS):
        model = WorldModel(spec, members=members, seed=seed)
        model.fit(data[which], epochs=epochs, device="cpu", precision=_FP32)
        fitted = cast("FittedModel", model.fitted_model)
        if as_used:
            fitted = fitted.recalibrated(deployed["calibration"])
        if which == "twin":
            outcomes = fitted.codec.outcomes(deployed["test"])
            predicted = fitted.predict_transitions(deployed["test"])
            metrics = measure(predicted, outcomes, fitted.codec)
        shutil.rmtree(folder / which, ignore_errors=True)
        WorldModel.from_fitted(fitted, metrics if which == "twin" else {}).save(
            folder / which, half=True
        )
    groups = {
        which: sorted({transition.group for transition in [*rows, *calibration]})
        for which, rows in learned.items()
    }
    files = sorted(path for which in _MODELS for path in (folder / which).iterdir())
    index = {
        "format": FORMAT,
        "command": command,
        "seed": seed,
        "epochs": epochs,
        "transitions": len(transitions),
        "excluded": twin_data.describe_exclusions(),
        **notes,
        "files": {path.relative_to(folder).as_posix(): hash_file(path).sha256 for path in files},
        "groups": groups,
    }
    write_json(folder / _INDEX, index)
    return metrics


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelInUse:
    """The world model that an agent uses now, and why this one.

    Attributes:
        model: The model; None if there is none to use.
        source: Where it comes from.
        reason: Why a better source is not used, or what is wrong with another one; empty if there
            is nothing to say.
    """

    model: WorldModel | None
    source: Literal["published", "prior", "none"]
    reason: str


def choose_model(
    published: Path | None,
    prior: Path | None,
    spec: TransitionSpec,
    build_network: BuildNetwork = EnsembleNetwork,
) -> ModelInUse:
    """Choose the published model if it has beaten the prior at its gate, else the prior.

    Args:
        published: Folder of the published model; may be None, missing, empty or damaged.
        prior: Folder of the prior that ships with the agent, if one does.
        spec: Spec of the agent today.
        build_network: See `WorldModel.load`.
    """
    digest, shipped, problem = "", None, ""
    if prior is not None:
        try:
            opened = Prior.open(prior)
            digest, shipped = opened.digest, opened.load("model", spec, build_network)
        except PriorError as error:
            problem = str(error)
    why = ""
    try:
        model = None if published is None else WorldModel.load(published, build_network)
    except FileNotFoundError:
        model, why = None, "no world model is published yet"
    except (ModelFileError, OSError) as error:
        model, why = None, str(error)
    if model is not None and model.spec != spec:
        model, why = None, "the published world model has another version"
    if model is not None and shipped is not None and model.beaten_prior != digest:
        model, why = None, "the published world model was not compared with this prior"
    if model is not None:
        return ModelInUse(model=model, source="published", reason=problem)
    if shipped is not None:
        return ModelInUse(model=shipped, source="prior", reason=why)
    return ModelInUse(model=None, source="none", reason="; ".join(filter(None, (why, problem))))

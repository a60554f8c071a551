"""Which parameters of a model each part of a job trains, with the errors of a wrong division."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from torch.nn import Module, Parameter
from torch.optim import Optimizer

from infrastructure.agent_contract import Part, Target


def part_parameters(
    model: Module, parts: Sequence[Part], targets: Sequence[Target]
) -> dict[str, list[Parameter]]:
    """The parameters of *model* that each of *parts* trains, by the part's name.

    Raises:
        ValueError: A name is not in the model, a part trains no parameter, two parts train one, a
            part trains a target, or two targets share a parameter.
    """
    names = dict(model.named_parameters(remove_duplicate=False))
    places = {*names, *(name for name, _ in model.named_modules() if name)}
    owners: dict[Parameter, str] = {}
    following: dict[Parameter, str] = {}
    for target in targets:
        for place, parameter in _inside(target.module, names, places).items():
            if following.get(parameter, target.module) != target.module:
                raise ValueError(
                    f"targets {following[parameter]!r} and {target.module!r} both hold {place}: "
                    "let one of them hold it"
                )
            following[parameter] = target.module
    chosen: dict[str, list[Parameter]] = {}
    for part in parts:
        parameters: dict[Parameter, None] = {}
        for name in part.trains:
            for place, parameter in _inside(name, names, places).items():
                if owners.get(parameter, part.name) != part.name:
                    raise ValueError(
                        f"parts {owners[parameter]!r} and {part.name!r} both train {place}: let "
                        "one of them train it; the other's loss may still run it"
                    )
                if parameter in following:
                    raise ValueError(
                        f"part {part.name!r} trains {place}, which is in the target "
                        f"{following[parameter]!r}: a target only follows its source"
                    )
                owners[parameter] = part.name
                parameters[parameter] = None
        if not any(parameter.requires_grad for parameter in parameters):
            raise ValueError(
                f"part {part.name!r} has no parameter to train in {', '.join(part.trains)}: name "
                "modules that have some whose requires_grad is True"
            )
        chosen[part.name] = list(parameters)
    return chosen


def require_own(
    optimizer: Optimizer, part: Part, parameters: Sequence[Parameter], model: Module
) -> None:
    """Raise if *optimizer* updates anything but *parameters*, those of *part*.

    Raises:
        ValueError: It does; the message names the parameter.
    """
    held = {p for group in optimizer.param_groups for p in group["params"]}
    names = {parameter: name for name, parameter in model.named_parameters()}
    foreign = sorted(names.get(p, "one outside the model") for p in held.difference(parameters))
    if foreign or not held:
        what = f"updates {foreign[0]}, which the part does not train" if foreign else "has none"
        raise ValueError(
            f"the optimizer of part {part.name!r} {what}: build it from the parameters that its "
            "function is given"
        )


def source_part(
    target: Target, model: Module, chosen: dict[str, list[Parameter]]
) -> tuple[str, list[tuple[Parameter, Parameter]]]:
    """Name of the part that trains the source of *target*; pairs of target and source.

    Raises:
        ValueError: No single part trains the source, or target and source are of other shapes.
    """
    names = dict(model.named_parameters(remove_duplicate=False))
    places = {*names, *(name for name, _ in model.named_modules() if name)}
    followers, sources = (_relative(name, names, places) for name in (target.module, target.source))
    forms = [
        {name: (parameter.shape, parameter.dtype) for name, parameter in module.items()}
        for module in (followers, sources)
    ]
    if forms[0] != forms[1]:
        raise ValueError(
            f"target {target.module!r} and its source {target.source!r} have different "
            "parameters: make the target a copy of the source (copy.deepcopy)"
        )
    if any(followers[name] is sources[name] for name in followers):
        raise ValueError(
            f"target {target.module!r} shares parameters with its source {target.source!r}: make "
            "it a copy (copy.deepcopy)"
        )
    parts = [
        part
        for part, parameters in chosen.items()
        if any(p is source for p in parameters for source in sources.values())
    ]
    if len(parts) != 1:
        trained = " and ".join(map(repr, parts)) or "no part"
        raise ValueError(
            f"the source {target.source!r} of target {target.module!r} is trained by {trained}: "
            "a target follows what exactly one part trains"
        )
    pairs = {followers[name]: sources[name] for name in sources}  # tied weights are one
    return parts[0], list(pairs.items())


def _inside(name: str, names: dict[str, Parameter], places: Iterable[str]) -> dict[str, Parameter]:
    """Parameters in the module *name*, or the parameter of that name, by qualified name."""
    if name not in places:
        close = difflib.get_close_matches(name, places, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(map(repr, close))}?" if close else "see named_modules()"
        raise ValueError(f"the model has no module or parameter {name!r}: {hint}")
    return {
        place: parameter
        for place, parameter in names.items()
        if place == name or place.startswith(f"{name}.")
    }


def _relative(
    name: str, names: dict[str, Parameter], places: Iterable[str]
) -> dict[str, Parameter]:
    return {
        place.removeprefix(name): parameter
        for place, parameter in _inside(name, names, places).items()
    }

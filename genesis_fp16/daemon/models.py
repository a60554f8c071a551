"""Versions of an agent's model: which are kept, which is in use, and back to an earlier one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from genesis_fp16.plugins.model_versions import (
    KeptVersion,
    ModelVersion,
    ModelVersionError,
    find_version,
    publishing,
    put_back,
    read_versions,
    version_in_use,
    withdraw,
)
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store
from genesis_fp16.store.decisions import KEEP, Change
from genesis_fp16.system.permissions import private_umask

WAIT_SECONDS = 5.0  # for a run that is publishing


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentModels:
    """Models of an agent.

    Attributes:
        versions: Kept versions, the last published first.
        in_use: Id of the version in use; None if none of them is.
    """

    versions: list[KeptVersion]
    in_use: str | None


def list_models(settings: Settings, agent: str, *, verify: bool = True) -> AgentModels:
    """The kept versions of *agent*, and the one in use.

    With *verify*, the hashes of all their files are checked, otherwise only the sizes.
    """
    folder = _folder(settings, agent)
    versions = read_versions(folder, verify=verify)
    return AgentModels(versions=versions, in_use=version_in_use(folder, versions))


def roll_back(
    settings: Settings, store: Store, agent: str, to: str | None, *, actor: str, reason: str
) -> ModelVersion:
    """Make an earlier version the model in use; audited before it is done.

    Runs compare their model with it from then on, also one that trains now.

    Args:
        to: Id of the version; None for the one that the model in use replaced.

    Raises:
        ModelVersionError: The version is unknown, damaged or in use already, or a run is
            publishing now; nothing was changed.
        OSError: It could not be written; the model in use has not changed.
    """
    folder = _folder(settings, agent)
    with private_umask(settings.home.absolute()), publishing(folder, wait_seconds=WAIT_SECONDS):
        models = list_models(settings, agent, verify=False)
        target = find_version(folder, to or _replaced(agent, models))
        if target.id == models.in_use:
            raise ModelVersionError(
                f"version {target.id} of {agent} is in use already: choose another one of "
                f"genesis-fp16 models list {agent}"
            )
        change = {"from": models.in_use, "to": target.id}
        store.record_change(Change(actor, "models rollback", agent, reason, change))
        try:
            return put_back(folder, target.id)
        except BaseException as error:
            failed = f"failed: {error}"
            store.record_change(Change(actor, "models rollback", agent, failed, change))
            raise


def take_back(
    settings: Settings, agent: str, version: str, never_to: Collection[str]
) -> str | None:
    """Put the version in use that *version* replaced, or one before it, or none.

    Never one that was published later, is damaged, or is in *never_to*.

    Returns:
        Id of the version in use now; None for none.

    Raises:
        ModelVersionError: A run publishes now, or *version* is not in use any more; nothing was
            changed.
        OSError: It could not be written.
    """
    folder = _folder(settings, agent)
    with private_umask(settings.home.absolute()), publishing(folder, wait_seconds=0.0):
        models = list_models(settings, agent, verify=False)
        if models.in_use != version:
            raise ModelVersionError(f"version {version} of {agent} is not in use any more")
        damaged = set(never_to)
        while (target := _earlier(models, version, damaged)) is not None:
            try:
                put_back(folder, target)
            except ModelVersionError:
                damaged.add(target)
            else:
                return target
        withdraw(folder)
    return None


def _earlier(models: AgentModels, version: str, never_to: Collection[str]) -> str | None:
    kept = {each.id: each for each in models.versions if each.facts is not None}
    facts = kept[version].facts
    while facts is not None and facts.replaced in kept:
        before = kept[facts.replaced]
        if before.facts is None or before.facts.published_at >= facts.published_at:
            return None
        if not before.problem and before.id not in never_to:
            return before.id
        facts = before.facts
    return None


def keep_in_use(settings: Settings, store: Store, agent: str, *, actor: str, reason: str) -> str:
    """Let the guard leave the version in use alone, until another is published; audited.

    Returns:
        Id of the version.

    Raises:
        ModelVersionError: No kept version is in use.
    """
    in_use = list_models(settings, agent, verify=False).in_use
    if in_use is None:
        raise ModelVersionError(
            f"no kept version of {agent} is in use, so there is nothing to keep: see genesis-fp16 "
            f"models list {agent}"
        )
    store.record_change(Change(actor, KEEP, agent, reason, {"version": in_use}))
    return in_use


def _folder(settings: Settings, agent: str) -> Path:
    return settings.home.absolute() / "agents" / agent


def _replaced(agent: str, models: AgentModels) -> str:
    """The version that was in use before the one in use now."""
    kept = {version.id: version.facts for version in models.versions}
    facts = kept.get(models.in_use or "")
    if facts is not None and facts.replaced in kept:
        return facts.replaced
    choices = ", ".join(name for name in kept if name != models.in_use)
    raise ModelVersionError(
        f"which version was in use before is not known for {agent}: "
        + (f"name one with --to: {choices}" if choices else "no other version of it is kept")
    )

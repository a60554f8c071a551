"""Precision by role: the types in which each model or computation of a job works.

A job that trains a policy has several roles: the policy itself, a frozen reference, the copy that
generates text, a reward, values. This module imports no torch, so that the daemon can read it;
`infrastructure.training.precision.roles` computes with it.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from infrastructure.events.precision_state import (
    PRECISIONS,
    PrecisionName,
    PrecisionState,
    Role,
)

HalfName = Literal["fp16", "bf16"]

_MANTISSA_BITS: Mapping[PrecisionName, int] = {"fp32": 23, "fp16": 10, "bf16": 7}


TRAINED = frozenset({Role.WORLD_MODEL, Role.POLICY, Role.VALUE})


class RolePrecisionError(ValueError):
    """Types that a role cannot have; the message names the role and the remedy."""


class PresetError(ValueError):
    """A preset that cannot be used."""


class UnknownPresetError(PresetError):
    """No preset has this name.

    Args:
        name: The name.
    """

    def __init__(self, name: str) -> None:
        close = difflib.get_close_matches(name, PRESETS, n=1, cutoff=0.6)
        hint = f"did you mean {close[0]}? " if close else ""
        super().__init__(f"unknown preset {name!r}: {hint}the presets are {', '.join(PRESETS)}")
        self.name = name


class PurePresetError(PresetError):
    """A preset that keeps trained weights in half precision was chosen outside the lab.

    Args:
        name: Name of the preset.
    """

    def __init__(self, name: str) -> None:
        usable = ", ".join(preset.name for preset in PRESETS.values() if not preset.pure)
        super().__init__(
            f"preset {name!r} is for measurements only: it has no FP32 master weights, so a "
            f"rollback would have nothing to return to. Choose one of {usable}"
        )
        self.name = name


@dataclass(frozen=True, slots=True)
class RolePrecision:
    """The types of one role; ``str()`` gives ``fp32/fp16/fp32`` and `parse` reads it.

    Attributes:
        store: Type of the weights, or of a computation's inputs.
        compute: Type of the operations that autocast lowers.
        out: Type of the results, before any log-softmax or loss.

    Raises:
        RolePrecisionError: A type is unknown, or weights of one half type would be computed in the
            other.
    """

    store: PrecisionName
    compute: PrecisionName
    out: PrecisionName

    def __post_init__(self) -> None:
        for name in ("store", "compute", "out"):
            value = getattr(self, name)
            if value not in PRECISIONS:
                raise RolePrecisionError(
                    f"{name} must be one of {', '.join(PRECISIONS)}, got {value!r}"
                )
        if "fp32" not in (self.store, self.compute) and self.store != self.compute:
            raise RolePrecisionError(
                f"{self} would store weights in {self.store} and compute in {self.compute}: one "
                "half type loses what the other keeps. Use one of them for both, or store in fp32"
            )

    @classmethod
    def parse(cls, text: str) -> RolePrecision:
        """Read ``store/compute/out``, such as ``fp32/fp16/fp32``.

        Raises:
            RolePrecisionError: *text* is not three known types.
        """
        parts = text.strip().lower().split("/")
        if len(parts) != 3:
            raise RolePrecisionError(
                f"write a role's precision as store/compute/out, such as fp32/fp16/fp32, got "
                f"{text!r}"
            )
        return cls(*parts)  # type: ignore[arg-type]  # checked there

    def __str__(self) -> str:
        return f"{self.store}/{self.compute}/{self.out}"

    @property
    def is_half(self) -> bool:
        """Whether any of the types is half precision."""
        return self != FP32

    def in_half(self, half: HalfName) -> RolePrecision:
        """The same with *half* in place of each half type."""
        return RolePrecision(
            *("fp32" if name == "fp32" else half for name in (self.store, self.compute, self.out))
        )


FP32 = RolePrecision("fp32", "fp32", "fp32")


@dataclass(frozen=True, kw_only=True, slots=True)
class RolePrecisions(Mapping[Role, RolePrecision]):
    """A precision for every role.

    Attributes:
        name: Name of the preset it is, or of the one it was made from.
        roles: Precision of each role; roles that are left out are FP32.
        pure: Whether trained weights and losses may be in half precision. For measurements only.
        source: Where a preset comes from.
        fp32_head: Roles whose output head, from features to logits, computes in FP32, with float32
            weights.

    Raises:
        RolePrecisionError: A trained role is stored in half precision, or a result is returned in
            it, and *pure* is false; the head of the policy or of the rollout alone is in FP32.
    """

    name: str
    roles: Mapping[Role, RolePrecision]
    pure: bool = False
    source: str = ""
    fp32_head: frozenset[Role] = frozenset()

    def __post_init__(self) -> None:
        if one_sided := self.fp32_head & {Role.POLICY, Role.ROLLOUT}:
            self._check_heads(one_sided)
        given = {Role(role): precision for role, precision in self.roles.items()}
        roles = {role: given.get(role, FP32) for role in Role}
        object.__setattr__(self, "roles", MappingProxyType(roles))
        if self.pure:
            return
        for role, precision in roles.items():
            if role in TRAINED and precision.store != "fp32":
                raise RolePrecisionError(
                    f"{self.name}: role {role} is trained but stored in {precision.store} "
                    f"({precision}): small updates would be lost. Store it in fp32, or set "
                    "pure=True for a measurement"
                )
            if precision.out != "fp32":
                raise RolePrecisionError(
                    f"{self.name}: role {role} returns {precision.out} ({precision}), but losses "
                    "and log-probabilities need fp32. Set out to fp32, or pure=True for a "
                    "measurement"
                )

    def _check_heads(self, sides: frozenset[Role]) -> None:
        if len(sides) == 1:
            (side,) = sides
            other = Role.ROLLOUT if side is Role.POLICY else Role.POLICY
            raise RolePrecisionError(
                f"{self.name}: the head of role {side} alone is in FP32, and that of {other} is "
                "not: the two then round their logits differently, which makes the mismatch of "
                "trainer and rollout worse, not better. Name both roles in fp32_head, or neither"
            )

    def __getitem__(self, role: Role) -> RolePrecision:
        return self.roles[role]

    def __iter__(self) -> Iterator[Role]:
        return iter(self.roles)

    def __len__(self) -> int:
        return len(self.roles)

    @property
    def half(self) -> HalfName | None:
        """Half type in which the policy computes, or None for FP32."""
        compute = self[Role.POLICY].compute
        return None if compute == "fp32" else compute

    @property
    def scaled_roles(self) -> frozenset[Role]:
        """Roles whose gradients need a loss scale: those trained and computed in FP16."""
        return frozenset(role for role in TRAINED if self[role].compute == "fp16")

    def with_role(self, role: Role, precision: RolePrecision) -> RolePrecisions:
        """The same with another precision for *role*.

        Raises:
            RolePrecisionError: As for the constructor.
        """
        return replace(self, roles={**self.roles, role: precision})

    def in_half(self, half: HalfName) -> RolePrecisions:
        """The same with *half* as the only half type, in every role that has one."""
        return replace(
            self, roles={role: precision.in_half(half) for role, precision in self.items()}
        )

    def rolled_back(self) -> RolePrecisions:
        """The same with every role in FP32."""
        return replace(self, roles={}, pure=False)

    def without_effect(self, roles: Collection[Role]) -> list[str]:
        """One sentence for each half type that a policy job with these *roles* has no use for."""
        return [
            f"{self.name}: role {role} has {precision}, but the job has no such role"
            for role, precision in self.items()
            if precision.is_half and role is not Role.WORLD_MODEL and role not in roles
        ]

    def warnings(self) -> list[str]:
        """What is allowed but probably not intended, one sentence each."""
        policy, rollout = self[Role.POLICY].compute, self[Role.ROLLOUT].compute
        if policy == rollout:
            return []
        coarser = min(policy, rollout, key=_MANTISSA_BITS.__getitem__)
        return [
            f"{self.name}: the policy computes in {policy} ({_MANTISSA_BITS[policy]} mantissa "
            f"bits) and the rollout in {rollout} ({_MANTISSA_BITS[rollout]}), so the probabilities "
            f"of trainer and rollout differ by the rounding of {coarser}. Use one type for both"
        ]


def _preset(
    name: str, source: str, /, *, pure: bool = False, **roles: str
) -> tuple[str, RolePrecisions]:
    precisions = {Role(role): RolePrecision.parse(text) for role, text in roles.items()}
    return name, RolePrecisions(name=name, roles=precisions, pure=pure, source=source)


def _forensics(name: str, half: HalfName, *fp32: Role) -> tuple[str, RolePrecisions]:
    """A row of dtype-rlhf: every role of the policy job in *half* except those in *fp32*."""
    everything = set(Role) - {Role.WORLD_MODEL, *fp32}
    types = RolePrecision(half, half, half)
    roles = dict.fromkeys(everything, types)
    source = "dtype-rlhf" if half == "bf16" else "dtype-rlhf in FP16"
    return name, RolePrecisions(name=name, roles=roles, pure=True, source=source)


def _presets() -> Iterator[tuple[str, RolePrecisions]]:
    fp16, bf16 = "fp32/fp16/fp32", "fp32/bf16/fp32"
    frozen_fp16, frozen_bf16 = "fp16/fp16/fp32", "bf16/bf16/fp32"
    for name, source, trained, reference, rollout in (
        ("flowrl_fp16", "verl_FlowRL, branch dev-fp16", fp16, frozen_fp16, frozen_fp16),
        ("flowrl_bf16", "flowrl_fp16 in BF16", bf16, frozen_bf16, frozen_bf16),
        (
            "bf16_train_fp16_infer",
            "verl_FlowRL, branch dev-bf16-train-fp16-infer",
            bf16,
            frozen_bf16,
            frozen_fp16,
        ),
        (
            "fp16_train_bf16_infer",
            "bf16_train_fp16_infer with its half types exchanged",
            fp16,
            frozen_fp16,
            frozen_bf16,
        ),
    ):
        yield _preset(
            name, source, world_model=trained, policy=trained, reference=reference, rollout=rollout
        )
    yield _preset(  # its patch touches actor and rollout; it trains without reference and critic
        "precision-rl",
        "sail-sg/Precision-RL",
        world_model=fp16,
        policy=fp16,
        rollout=frozen_fp16,
    )
    for half, trained, frozen in (("fp16", fp16, frozen_fp16), ("bf16", bf16, frozen_bf16)):
        yield _preset(  # the same for every job
            half,
            "plain",
            world_model=trained,
            policy=trained,
            value=trained,
            reference=frozen,
            rollout=frozen,
        )
        name, preset = _preset(
            f"{half}_fp32_head",
            "the head in FP32 on all sides, as TRL and prime-rl can have it",
            world_model=trained,
            policy=trained,
            reference=frozen,
            rollout=frozen,
        )
        heads = frozenset({Role.POLICY, Role.ROLLOUT, Role.REFERENCE})
        yield name, replace(preset, fp32_head=heads)
    halves: tuple[HalfName, ...] = ("bf16", "fp16")
    for half in halves:
        yield _forensics(f"{half}_pure", half)
        yield _forensics(f"{half}_fp32_kl", half, Role.KL, Role.ADVANTAGE)
        yield _forensics(f"{half}_fp32_value", half, Role.VALUE)
        yield _forensics(f"{half}_fp32_reward", half, Role.REWARD)
        yield _forensics(f"{half}_fp32_ref", half, Role.REFERENCE)
        yield _forensics(
            "mixed_recommended" if half == "bf16" else "mixed_recommended_fp16",
            half,
            *(Role.VALUE, Role.KL, Role.ADVANTAGE),
        )
    yield _preset("fp32_baseline", "dtype-rlhf")


PRESETS: Mapping[str, RolePrecisions] = MappingProxyType(dict(_presets()))


def default_preset(kind: Literal["policy", "world-model"]) -> str:
    """Name of the preset under which a frozen experiment of this kind is searched by default."""
    return "bf16_pure" if kind == "policy" else "fp16"


def find_preset(name: str) -> RolePrecisions:
    """The preset of this name.

    Raises:
        UnknownPresetError: There is none.
    """
    if name not in PRESETS:
        raise UnknownPresetError(name)
    return PRESETS[name]


def usable_preset(name: str) -> RolePrecisions:
    """The preset of this name, for a run that must be able to roll back.

    Raises:
        UnknownPresetError: There is none.
        PurePresetError: It has no FP32 master weights.
    """
    preset = find_preset(name)
    if preset.pure:
        raise PurePresetError(name)
    return preset


def roles_under(state: PrecisionState, preset: RolePrecisions | None = None) -> RolePrecisions:
    """The precision of every role where *state* is in force.

    FP32 means FP32 for every role. Otherwise the roles are those of *preset*, in the half type in
    force if the preset has another one, and the roles that *state* names have its types.

    Args:
        state: State whose ``effective`` is not ``auto``.
        preset: Choice of the job; by default ``flowrl_fp16`` or ``flowrl_bf16``.
    """
    if state.effective == "fp32":
        return (preset or PRESETS["fp32_baseline"]).rolled_back()
    half: HalfName = "bf16" if state.effective == "bf16" else "fp16"
    precisions = preset or PRESETS[f"flowrl_{half}"]
    if precisions.half != half:
        precisions = precisions.in_half(half)
    for role, types in state.roles.items():
        precisions = precisions.with_role(role, RolePrecision.parse(types))
    return precisions

"""``genesis-fp16 verl-overrides``: a preset of precisions by role, as Hydra overrides of verl.

The knobs were read in the source of the versions named here. A test composes those of v0.7.0 with
verl's own configuration files. verl 0.8 and newer lack two of the settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from genesis_fp16.cli.output import JsonFlag, print_json, print_line
from infrastructure.events import PrecisionName, Role
from infrastructure.events.role_precision import PresetError, RolePrecisions, find_preset

_DTYPES: Mapping[PrecisionName, str] = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_POLICY = "actor_rollout_ref"
_WORKERS = "verl/workers"


@dataclass(frozen=True, slots=True)
class Knob:
    """A setting of verl that takes a dtype.

    Attributes:
        role, part: What it sets.
        path: Its path in verl's configuration.
        read_in: File of verl's source that reads it.
    """

    role: Role
    part: Literal["store", "compute"]
    path: str
    read_in: str


@dataclass(frozen=True, slots=True)
class Fixed:
    """A role that no setting of verl reaches.

    Attributes:
        role: The role.
        compute: Type in which it computes; None if that depends on what is plugged in.
        why: What is hard-coded, and where.
    """

    role: Role
    compute: PrecisionName | None
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class VerlVersion:
    """A version of verl whose source was read.

    Attributes:
        name: Value of ``--verl``.
        source: Repository, tag or branch, and commit.
        knobs: Its settings that take a dtype.
        fixed: Roles that no setting reaches.
        always: Overrides that every preset needs, each with the reason.
        loss_scale: What it does about a loss scale.
    """

    name: str
    source: str
    knobs: tuple[Knob, ...]
    fixed: tuple[Fixed, ...]
    always: tuple[tuple[str, str], ...]
    loss_scale: str


_ROLLOUT = Knob(
    Role.ROLLOUT, "compute", f"{_POLICY}.rollout.dtype", f"{_WORKERS}/rollout/vllm_rollout"
)
_LOG_PROBS = (
    f"{_POLICY}.rollout.calculate_log_probs=True",
    "logs training/rollout_probs_diff_* and training/rollout_actor_probs_pearson_corr",
)
_UPSTREAM_KNOBS = (
    Knob(
        Role.POLICY,
        "store",
        f"{_POLICY}.actor.fsdp_config.model_dtype",
        f"{_WORKERS}/fsdp_workers.py",
    ),
    Knob(
        Role.POLICY,
        "compute",
        f"{_POLICY}.actor.fsdp_config.dtype",
        f"{_WORKERS}/actor/dp_actor.py",
    ),
    Knob(
        Role.REFERENCE,
        "store",
        f"{_POLICY}.ref.fsdp_config.model_dtype",
        f"{_WORKERS}/fsdp_workers.py",
    ),
    Knob(
        Role.REFERENCE,
        "compute",
        f"{_POLICY}.ref.fsdp_config.dtype",
        f"{_WORKERS}/actor/dp_actor.py",
    ),
    _ROLLOUT,
    Knob(
        Role.VALUE,
        "store",
        "critic.model.fsdp_config.model_dtype",
        f"{_WORKERS}/fsdp_workers.py",
    ),
)
_CRITIC = Fixed(
    Role.VALUE,
    "bf16",
    "autocast to bfloat16 is hard-coded in verl/workers/critic/dp_critic.py",
)
_REWARD_MODEL = Fixed(
    Role.REWARD,
    None,
    "a reward model is loaded in bfloat16, hard-coded in verl/workers/fsdp_workers.py; a reward "
    "function computes in Python",
)
_NO_KNOB = (
    Fixed(Role.KL, None, "no setting: computed from the log-probabilities"),
    Fixed(Role.ADVANTAGE, None, "no setting: computed from the rewards"),
)
_LEGACY_WORKER = (
    "trainer.use_legacy_worker_impl=enable",
    "the other workers hard-code bfloat16 (verl/workers/engine/fsdp/transformer_impl.py)",
)
_SCALER = (
    "verl creates ShardedGradScaler(growth_interval=400) by itself. It cannot be configured and is "
    "not saved in checkpoints; skipped steps are not logged"
)

VERSIONS: Mapping[str, VerlVersion] = {
    version.name: version
    for version in (
        VerlVersion(
            name="v0.7.0",
            source="verl v0.7.0 (volcengine/verl f9c855f7), FSDP",
            knobs=(
                *_UPSTREAM_KNOBS,
                Knob(
                    Role.REWARD,
                    "compute",
                    "reward_model.rollout.dtype",
                    "verl/trainer/config/reward_model/dp_reward_loop.yaml",
                ),
            ),
            fixed=(_CRITIC, *_NO_KNOB),
            always=(_LEGACY_WORKER, _LOG_PROBS),
            loss_scale=_SCALER,
        ),
        VerlVersion(
            name="v0.6.1",
            source="verl v0.6.1 (volcengine/verl d62da495), FSDP",
            knobs=_UPSTREAM_KNOBS,
            fixed=(_CRITIC, _REWARD_MODEL, *_NO_KNOB),
            always=(_LEGACY_WORKER, _LOG_PROBS),
            loss_scale=_SCALER,
        ),
        VerlVersion(
            name="flowrl-dev-fp16",
            source="verl_FlowRL, branch dev-fp16 (Xuekai-Zhu/verl_FlowRL ca1c3c00), recipe/flowrl",
            knobs=(
                _UPSTREAM_KNOBS[0],
                Knob(
                    Role.POLICY,
                    "compute",
                    f"{_POLICY}.actor.dtype",
                    "recipe/flowrl/flowrl_actor.py",
                ),
                _UPSTREAM_KNOBS[2],
                Knob(
                    Role.REFERENCE,
                    "compute",
                    f"{_POLICY}.ref.dtype",
                    "recipe/flowrl/flowrl_actor.py",
                ),
                _ROLLOUT,
            ),
            fixed=(
                Fixed(Role.VALUE, None, "FlowRL trains no critic"),
                _REWARD_MODEL,
                *_NO_KNOB,
            ),
            always=(_LOG_PROBS,),
            loss_scale=_SCALER,
        ),
    )
}


def overrides(preset: RolePrecisions, version: VerlVersion) -> list[str]:
    """Hydra overrides that give a job of *version* the precisions of *preset*."""
    overridden = [
        f"{knob.path}={_DTYPES[getattr(preset[knob.role], knob.part)]}" for knob in version.knobs
    ]
    if "fp32" in (preset[Role.POLICY].compute, preset[Role.REFERENCE].compute):
        overridden += [
            f"+{_POLICY}.model.override_config.attn_implementation=sdpa",
            f"{_POLICY}.model.use_remove_padding=False",
        ]
    return overridden + [override for override, _ in version.always]


def remarks(preset: RolePrecisions, version: VerlVersion) -> Iterator[str]:
    """What *version* cannot express of *preset*, and what to know of its overrides."""
    for override, why in version.always:
        yield f"{override.partition('=')[0]}: {why}"
    yield from _not_expressed(preset, version)
    policy, reference = preset[Role.POLICY].compute, preset[Role.REFERENCE].compute
    if "fp32" in (policy, reference):
        yield "sdpa, without removed padding: FlashAttention has no float32 kernels"
    if Role.POLICY in preset.scaled_roles:
        yield f"loss scale: {version.loss_scale}"
    if preset.pure:
        yield "the policy is trained without float32 master weights: for measurements only"
    yield from preset.warnings()
    yield "a rollback to FP32 while the job runs: verl has none; start it again with fp32_baseline"


def _not_expressed(preset: RolePrecisions, version: VerlVersion) -> Iterator[str]:
    for fixed in version.fixed:
        types = preset[fixed.role]
        if fixed.compute != types.compute:
            yield f"{fixed.role} {types}, not expressed: {fixed.why}"
    for role in (Role.POLICY, Role.REFERENCE, Role.ROLLOUT):
        if preset[role].out != "fp32":
            yield f"{role} out={preset[role].out}, not expressed: no setting for results"
    reference = preset[Role.REFERENCE].compute
    if version.name == "flowrl-dev-fp16" and reference != preset[Role.POLICY].compute:
        yield (
            f"reference compute={reference}, expressed in part: ref.dtype sets autocast alone; "
            "FSDP gathers the reference in actor.dtype"
        )


def _preset(name: str) -> RolePrecisions:
    try:
        return find_preset(name)
    except PresetError as error:
        raise typer.BadParameter(str(error)) from error


def _version(name: str) -> VerlVersion:
    if name not in VERSIONS:
        raise typer.BadParameter(f"one of {', '.join(VERSIONS)}, got {name!r}")
    return VERSIONS[name]


def verl_overrides(
    preset: Annotated[str, typer.Argument(help="Name of a preset; see docs/how-to/policies.md.")],
    verl: Annotated[
        str, typer.Option("--verl", help=f"Version of verl: {', '.join(VERSIONS)}.")
    ] = "v0.7.0",
    as_json: JsonFlag = False,
) -> None:
    """Print PRESET as Hydra overrides of a verl job; comments say what verl cannot express."""
    chosen, version = _preset(preset), _version(verl)
    if as_json:
        print_json(
            {
                "preset": chosen.name,
                "verl": version.source,
                "overrides": overrides(chosen, version),
                "remarks": list(remarks(chosen, version)),
            }
        )
        return
    print_line(f"# {chosen.name} ({chosen.source}) for {version.source}")
    for override in overrides(chosen, version):
        print_line(override)
    for remark in remarks(chosen, version):
        print_line(f"# {remark}")

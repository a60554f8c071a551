"""Whole trainings under the guard's ladder, beside the same ones in FP32 throughout.

The training loop, the guard with its default settings, the rule that resolves the precision and
the search are the daemon's and the worker's own, in one process. The search runs at once, and its
answer arrives after the FP32 steps that would have been taken meanwhile. Statistics and comparisons
need not be a second apart here: these steps take milliseconds, so it would be hundreds of them.

B examples, D = `WIDTH` inputs.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import structlog
import torch
from torch import Tensor, nn

from benchmarks.rungs.models import FAULTS, FOREIGN, WIDTH, foreign, healthy, planted
from genesis_fp16.domain.precision import Device, PrecisionInputs, resolve_precision
from genesis_fp16.guard import Guard
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store
from infrastructure.agent_contract import Evaluation, Forward, TrainingJob
from infrastructure.agent_contract.training_job import Batch
from infrastructure.events import Command, PrecisionState, Role, SetPrecision
from infrastructure.events.event import (
    BaseEvent,
    BaselineCompared,
    PrecisionChanged,
    RungSearched,
    StepStats,
)
from infrastructure.events.role_precision import PRESETS
from infrastructure.precision_lab.environment import fixed_numerics
from infrastructure.precision_lab.experiments import WorldModelExperiment
from infrastructure.precision_lab.replay.preset_kernels import PresetKernels
from infrastructure.precision_lab.rung import LossHistory, RungRequest
from infrastructure.precision_lab.rung.search import search_rung
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.diagnostics.job_copy import disable_dropout
from infrastructure.training.inputs import preserved_generators
from infrastructure.training.loop import (
    LoopOptions,
    TrainingDivergedError,
    TrainingEnv,
    baseline,
    prepare,
    run,
    statistics,
)
from infrastructure.training.parts import Trainer
from infrastructure.training.precision import Precision
from infrastructure.training.profiling.product_flops import ProductFlops

ROWS, PER_EPOCH, EPOCHS, HEALTHY_EPOCHS, KEPT = 64, 200, 15, 4, 8
CHECKPOINT_SECONDS, ATTEMPTS = 1.0, 3
HELD_OUT, RESAMPLED = 2048, 1000
MARGIN = 0.01  # of FP32's loss: GENESIS_GUARD_METRIC_DRIFT
PEAK = {"FP16": 312.0, "TF32": 156.0, "FP32": 19.5}  # TFLOPS of an NVIDIA A100 (its data sheet)
AGENT, CPU = "a", torch.device("cpu")


@dataclass
class Data:
    """Rows of a fixed function, the same for every training of a seed."""

    seed: int
    offset: float = 0.0
    spoil: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        self.first = torch.randn(WIDTH, 16, generator=generator) / WIDTH**0.5
        self.second = torch.randn(16, 1, generator=generator) / 2
        self.held_out = self.rows(10**6, HELD_OUT)

    def rows(self, number: int, count: int = ROWS) -> dict[str, Tensor]:
        """Batch *number*."""
        generator = torch.Generator().manual_seed(self.seed * 10**7 + number)
        x = torch.randn(count, WIDTH, generator=generator)
        return {"x": x, "y": torch.tanh(x @ self.first) @ self.second + self.offset}

    def batches(self, epoch: int) -> Iterator[Batch]:
        """Batches of an epoch; spoilt ones after the first epoch."""
        for number in range(PER_EPOCH):
            batch = self.rows(epoch * PER_EPOCH + number)
            if self.spoil is not None and epoch:
                batch["x"] = self.spoil(batch["x"])
            yield batch


def loss(forward: Any, batch: Mapping[str, Tensor]) -> Tensor:  # noqa: ANN401  # a Forward
    """Mean squared error."""
    error: Tensor = forward(batch["x"]) - batch["y"]
    return error.square().mean()


@dataclass
class Guarded:
    """A training under the guard, or in FP32 throughout if *guard* is None."""

    guard: Guard | None
    run_id: str
    seed: int
    device: Device = field(default_factory=lambda: Device(accelerator=True, fp16=True, bf16=True))
    batches: list[Batch] = field(default_factory=list)
    history: LossHistory = field(default_factory=LossHistory)
    path: list[dict[str, Any]] = field(default_factory=list)
    found: list[RungSearched] = field(default_factory=list)
    attempts: int = 0
    steps_before: int = 0  # of attempts that failed
    symptom: int | None = None
    skipped: int = 0
    step: int = 0
    overhead: float = 0.0
    interval_steps: int = 1  # of a `BatchObserver`
    _again_at: float = math.inf

    def __post_init__(self) -> None:
        self.state = self.wish()
        self._answer: tuple[int, RungSearched] | None = None
        self._begun, self._scale, self._searched = time.monotonic(), 1.0, False

    def begin_attempt(self) -> None:
        """Begin as a worker does, from the newest checkpoint if there is one."""
        self.attempts += 1
        self.state, self._answer, self.step = self.wish(), None, 0

    def wish(self) -> PrecisionState:
        """What the daemon would decide now."""
        guard = self.guard
        return resolve_precision(
            PrecisionInputs(
                flag=guard is not None,
                default="fp16",
                agent=None,
                overrides=(),
                device=self.device,
                guard=guard is not None and guard.in_force(AGENT).demands_fp32,
                guard_roles={} if guard is None else guard.in_force(AGENT).roles,
                guard_modules=() if guard is None else guard.in_force(AGENT).modules,
            )
        )

    def emit(self, event: BaseEvent) -> None:
        """Let the guard see *event*."""
        if isinstance(event, StepStats):
            self.step, bad = event.step, event.overflow + event.nonfinite_loss
            self.skipped += bad
            self.history = self.history.after(event.loss)
            if event.precision != "fp32":
                self._scale = event.loss_scale
                self._see(bad > 0 and event.applied < 0.9 * event.attempted, event.step)
        elif isinstance(event, BaselineCompared):
            wrong = event.gradient_error is not None and event.gradient_error > 0.25
            self._see(event.loss_error > 0.05 or wrong, event.step)
        elif isinstance(event, PrecisionChanged):
            state = event.state
            self.path.append(
                {
                    "step": self.steps_before + event.step,
                    "in": state.effective,
                    "modules": list(state.modules),
                }
            )
        if self.guard is not None:
            self.guard.on_event(AGENT, self.run_id, event)  # type: ignore[arg-type]

    def _see(self, bad: bool, step: int) -> None:
        if bad and self.symptom is None:
            self.symptom = max(0, self.steps_before + step - 20)  # the window began there

    def commands(self) -> Iterable[Command]:
        """A change of precision that the daemon would send now."""
        wish = self.wish()
        if wish == self.state:
            return []
        self.state = wish
        return [SetPrecision(state=wish)]

    def keep(self, batch: Batch) -> None:
        """Keep the last batches."""
        self.batches = [*self.batches[-KEPT + 1 :], batch]

    def observe(self, trainer: Trainer) -> None:
        """Search after a rollback; the answer arrives as many steps later as it took."""
        if self._answer is not None and trainer.training_steps >= self._answer[0]:
            answer, self._answer = self._answer[1], None
            if answer.cause == "unexplained":  # as the worker's does, with other batches
                self._again_at = trainer.training_steps + 200
            self.emit(answer)
        if trainer.precision is not Precision.FP32 or trainer.training_steps >= self._again_at:
            self._searched, self._again_at = False, math.inf
        if trainer.precision is not Precision.FP32:
            return
        if self.guard is not None and not self._searched and len(self.found) < 3:
            self._searched = True
            seconds = (time.monotonic() - self._begun - self.overhead) / trainer.training_steps
            found = self._search(trainer)
            self.found.append(found)
            self.overhead += found.seconds
            self._answer = trainer.training_steps + math.ceil(found.seconds / seconds), found

    def _search(self, trainer: Trainer) -> RungSearched:
        model = copy.deepcopy(trainer.model).train()
        disable_dropout(model)
        request = RungRequest(
            half="fp16",
            step=trainer.training_steps,
            history=self.history,
            loss_scale=self._scale,
            other_half="bf16",
            seconds=300.0,
        )
        with preserved_generators(CPU), torch.enable_grad():
            return search_rung(experiment_of(model, self.batches), request)


def experiment_of(model: nn.Module, batches: Iterable[Batch]) -> WorldModelExperiment:
    """*batches* with *model*."""
    return WorldModelExperiment(
        models={Role.WORLD_MODEL: model}, batches=[dict(b) for b in batches], loss=loss
    )


def fp32_share(model: nn.Module, data: Data, names: Iterable[str]) -> float:
    """Share of the forward pass's operations that FP32 computes with *names* in FP32."""
    kernels = PresetKernels({Role.WORLD_MODEL: model}, PRESETS["fp16"], tuple(names))
    with torch.no_grad(), fixed_numerics(), ProductFlops() as counted:
        loss(kernels.model(Role.WORLD_MODEL), data.rows(0))
    in_fp32 = counted.flops.get("float32", 0.0)
    return float(in_fp32 / sum(counted.flops.values()))


def train(
    model: nn.Module, data: Data, home: Path, *, epochs: int, rate: float, guard: Guard | None
) -> tuple[Guarded, Tensor | None]:
    """Train *model*; return what happened and the squared errors on held-out rows.

    None if the training failed.
    """
    errors: list[Tensor] = []

    def evaluate(forward: Forward) -> Evaluation:
        squares = (forward(data.held_out["x"]) - data.held_out["y"]).square().squeeze(-1)
        errors[:] = [squares.detach()]
        metrics = {"mse": float(squares.mean())}
        return Evaluation(metrics=metrics, primary="mse", higher_is_better=False)

    def job() -> TrainingJob:
        return TrainingJob(
            model=copy.deepcopy(model),
            optimizer=lambda parameters: torch.optim.Adam(parameters, lr=rate, fused=True),
            batches=data.batches,
            loss=loss,
            evaluate=evaluate,
            epochs=epochs,
        )

    guarded = Guarded(guard, uuid.uuid4().hex, data.seed)
    options = LoopOptions(
        seed=data.seed, baseline_interval_steps=50, checkpoint_interval_seconds=CHECKPOINT_SECONDS
    )
    for _ in range(ATTEMPTS):
        guarded.begin_attempt()
        env = TrainingEnv(
            device=CPU,
            precision=guarded.state,
            config=FP16TrainingConfig(cpu_half=True),
            options=options,
            folder=home / guarded.run_id,
            emit=guarded.emit,
            commands=guarded.commands,
            batch_observer=guarded,
        )
        try:
            run(prepare(job(), env))
        except TrainingDivergedError as error:
            guarded.steps_before += guarded.step
            if error.in_fp32:
                break
            continue
        return guarded, errors[0]
    return guarded, None


def worse_by(guarded: Tensor, fp32: Tensor, seed: int) -> tuple[float, float]:
    """95 % interval of the mean difference as a share of FP32's mean, by a paired bootstrap."""
    difference = (guarded - fp32).double() / fp32.double().mean().clamp(min=1e-12)
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randint(HELD_OUT, (RESAMPLED, HELD_OUT), generator=generator)
    means = difference[chosen].mean(-1)
    low, high = means.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return low, high


def plan(seed: int, healthy_models: int) -> Iterator[tuple[str, str, int]]:
    """Set, kind and seed of each training."""
    kinds = [*FAULTS, "head_6e4", "exploding_layer", "lstm_gate", "two_places"]
    order = torch.randperm(len(kinds), generator=torch.Generator().manual_seed(seed)).tolist()
    again = [kinds[number] for number in order[: 24 - len(kinds)]]
    for number, kind in enumerate(kinds + again):
        yield "planted", kind, 1000 * seed + number
    for number in range(12):
        kind = ("nan", "inf", "-inf", "rate", "rate", "1e30")[number % 6]
        yield "hopeless", kind, 1000 * seed + 100 + number
    names = [*(f"own {number}" for number in range(10)), *FOREIGN]
    for number in range(healthy_models):
        yield "healthy", names[number % len(names)], 1000 * seed + 200 + number


def one(what: str, kind: str, seed: int, guard: Guard, home: Path) -> dict[str, Any]:
    """Train one planned model and return its line."""
    torch.manual_seed(seed)
    guilty, epochs, rate, data = "", HEALTHY_EPOCHS, 1e-3, Data(seed)
    if what == "planted":
        model, guilty = planted(kind, seed, shallow=False)
        epochs, data = EPOCHS, Data(seed, offset=7e4 if kind == "head_6e4" else 0.0)
    elif kind.startswith("own") or what == "hopeless":
        model = healthy(int(kind.split()[1]) if what == "healthy" else seed)
    else:
        model = foreign(kind)
    if what == "hopeless" and kind == "rate":
        rate = 1e4
    elif what == "hopeless":
        value = float(kind)
        data.spoil = lambda x: torch.where(torch.arange(len(x))[:, None] == 0, value, x)
    model(data.rows(0)["x"])  # lazy modules
    twin, begun = copy.deepcopy(model), time.process_time()
    share = fp32_share(model, data, guilty.split(",")[:1]) if guilty else None
    guarded, errors = train(model, data, home, epochs=epochs, rate=rate, guard=guard)
    line: dict[str, Any] = {"set": what, "kind": kind, "seed": seed, "guilty": guilty}
    last = guard.decision(AGENT)
    line |= {"path": guarded.path, "symptom": guarded.symptom}
    line |= {"attempts": guarded.attempts, "lost": guarded.skipped + guarded.steps_before}
    line |= {
        "steps": guarded.steps_before + guarded.step,
        "rung": last.rung,
        "modules": list(last.modules),
    }
    line |= {"trigger": last.trigger, "culprit_share": share}
    line["searches"] = [found.model_dump(mode="json") for found in guarded.found]
    shares = {"half": 0.0, "roles": 0.0, "fp32": 1.0}
    line["fp32_share"] = shares.get(last.rung) if not last.modules else guarded.found[-1].fp32_share
    if what == "planted":
        _, exact = train(twin, data, home, epochs=epochs, rate=rate, guard=None)
        if errors is not None and exact is not None:
            line |= {"loss": float(errors.mean()), "fp32_loss": float(exact.mean())}
            line["worse_by"] = worse_by(errors, exact, seed)
    return {**line, "cpu_seconds": time.process_time() - begun}


def measure(seed: int, healthy_models: int, out: Path) -> None:
    """Train what *out* does not hold yet, print each line, then the table."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    logging.disable(logging.WARNING)
    statistics._SHORTEST_WINDOW_SECONDS = 0.0
    baseline._SHORTEST_PAUSE_SECONDS = 0.0
    out.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    done = {(line["set"], line["kind"], line["seed"]) for line in lines}
    with tempfile.TemporaryDirectory() as folder:
        for what, kind, one_seed in plan(seed, healthy_models):
            if (what, kind, one_seed) in done:
                continue
            home = Path(folder, f"{one_seed}")
            settings = Settings(home=home)
            store = Store.open(settings)
            line = one(what, kind, one_seed, Guard(store, settings), home)
            store.close()
            lines.append(line)
            with out.open("a") as file:
                file.write(json.dumps(line) + "\n")
            _show(line)
    report(lines)


def not_worse(line: Mapping[str, Any]) -> bool:
    """Whether the interval does not lie above a loss `MARGIN` worse than FP32's."""
    return "worse_by" in line and line["worse_by"][0] <= MARGIN


def _show(line: Mapping[str, Any]) -> None:
    path = " ".join(
        f"{at['step']}:{at['in']}{'+' + ','.join(at['modules']) if at['modules'] else ''}"
        for at in line["path"]
    )
    worse = "..".join(f"{end:+.1%}" for end in line.get("worse_by", ()))
    share = "" if line["fp32_share"] is None else f"{line['fp32_share']:.0%}"
    cause = line["searches"][-1]["cause"] if line["searches"] else "-"
    print(  # a command
        f"{line['set']:8} {line['kind']:16} {line['guilty']:8} {line['trigger'] or '-':18} "
        f"{cause:12} {share:4} {worse:16} {path} {line['cpu_seconds']:.0f} s",
        flush=True,
    )


def throughput(share: float, fp32: str) -> float:
    """Estimated throughput with *share* of the operations in FP32, as a share of all in half.

    By products alone, each at the peak rate of its type; *fp32* is what FP32 products run in.
    """
    return 1 / (1 - share + share * PEAK["FP16"] / PEAK[fp32])


def report(lines: Iterable[Mapping[str, Any]]) -> None:
    """Print the rows of the table."""
    lines = list(lines)
    faults = [line for line in lines if line["set"] == "planted"]
    told = [line for line in faults if line["trigger"]]
    small = [line for line in told if (line["culprit_share"] or 1) < 0.2]
    cured = [line for line in small if line["fp32_share"] < 0.2]
    lost = [line["lost"] / line["steps"] for line in faults]
    to_fp32 = [s for line in told if (s := _steps_to(line, "fp32")) is not None]
    to_rung = [s for line in told if (s := _steps_to(line, "last")) is not None]
    well = [line for line in lines if line["set"] == "healthy"]
    hopeless = [line for line in lines if line["set"] == "hopeless"]
    named = [
        line
        for line in hopeless
        if any(found["cause"] in ("data", "optimisation") for found in line["searches"])
    ]
    print(f"\nfaults not worse than FP32: {sum(map(not_worse, faults))} of {len(faults)}")
    print(f"faults that tripped the guard: {len(told)}; with a culprit below a fifth of the")
    print(f"operations: {len(small)}, of these below a fifth in FP32 at the end: {len(cured)}")
    print(f"steps skipped, or of attempts that failed: median {median(lost or [0]):.2%}")
    print(f"most of these: {max(lost or [0]):.2%}")
    print(f"steps from the first symptom to FP32: median {median(to_fp32 or [0])}")
    print(f"to the smallest rung: median {median(to_rung or [0])}")
    print("estimated throughput of the last rung, by products at an A100's peak rates:")
    for line in faults:
        share, shown = line["fp32_share"], []
        for fp32 in ("TF32", "FP32"):
            rate, whole = throughput(share, fp32), throughput(1.0, fp32)
            shown.append(f"{rate:4.0%} of half, {rate / whole:5.2f} times FP32 ({fp32} products)")
        print(f"  {line['kind']:16} {share:4.0%} in FP32: {'; '.join(shown)}")
    raised = sum(bool(line["modules"]) for line in well)
    tripped = sum(bool(line["trigger"]) for line in well)
    print(f"healthy: {raised} of {len(well)} with a module raised, {tripped} tripped")
    print(f"hopeless: {sum(bool(line['modules']) for line in hopeless)} of {len(hopeless)} raised")
    print(f"hopeless, named as data or optimisation: {len(named)}")
    print(f"{sum(line['cpu_seconds'] for line in lines):.0f} CPU s")


def _steps_to(line: Mapping[str, Any], rung: str) -> int | None:
    """Steps from the first symptom until FP32, or the last change, was in force."""
    changes: list[int] = [at["step"] for at in line["path"] if at["step"]]
    if line["symptom"] is None or not changes:
        return None
    symptom: int = line["symptom"]
    return max(0, (changes[0] if rung == "fp32" else changes[-1]) - symptom)

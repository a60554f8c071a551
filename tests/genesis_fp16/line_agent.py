"""An agent whose worker does what a test asks; its settings say what."""

import subprocess
import sys
import time

import torch
import torch.distributed as dist
from pydantic import BaseModel

from infrastructure.agent_contract import (
    Evaluation,
    Publication,
    Schedule,
    TrainingJob,
    Transition,
)
from infrastructure.agent_contract.agent import InsufficientDataError


class Knobs(BaseModel):
    epochs: int = 2
    pause: float = 0.0
    collect: str = "4"
    needed: int = 1
    half: bool = False
    fails_on_rank: int = -1
    watch: bool = False
    chatty: bool = False
    recurrent: bool = False
    diverges: bool = False


class LineAgent:
    name = "line"
    contract_version = 1

    def schedule(self):
        return Schedule(every_seconds=3600)

    def settings_model(self):
        return Knobs

    def collect(self, context):
        kind = context.settings.collect
        count = int(kind) if kind.isdigit() else 2
        for number in range(count):
            yield Transition(group=f"g{number}", observation={"x": float(number)}, action={})
        if kind == "full":
            raise OSError(28, "No space left on device", "/data/replay")
        if kind == "dicts":
            yield {"x": 1.0}
        if kind == "forks":
            sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
            nested = (
                "import subprocess; devnull = subprocess.DEVNULL; "
                "child = subprocess.Popen({!r}, start_new_session=True, stdout=devnull); "
                "print(child.pid)"
            )
            with (context.run_folder / "pids").open("w") as pids:
                parent = [sys.executable, "-c", nested.format(sleep)]
                subprocess.run(parent, stdout=pids, check=True)
                apart = subprocess.Popen(sleep, start_new_session=True)
                pids.write(str(apart.pid))
        if kind == "raises":
            raise RuntimeError("the simulator is gone")
        if kind == "exits":
            sys.exit(0)
        if kind == "steals":
            assert sys.stdin.read() == ""
        if kind == "endless":
            while True:
                time.sleep(0.01)
                yield Transition(group="g", observation={"x": 1.0}, action={})

    def build_job(self, context, transitions):
        if len(transitions) < context.settings.needed:
            raise InsufficientDataError("transitions", len(transitions), context.settings.needed)
        if context.settings.collect == "nothing":
            return None
        sys.stdout.write(f"trains on {len(transitions)}\n")
        context.logger.info("building", transitions=len(transitions))
        x = torch.tensor([[t.observation["x"]] for t in transitions])
        batch = {"x": x, "y": 2 * x}
        knobs = context.settings

        def batches(epoch):
            for _ in range(50):
                time.sleep(knobs.pause)
                if knobs.chatty:
                    self.said = getattr(self, "said", 0) + 1
                    texts = {f"text{i}": "x" * 500 for i in range(10)}
                    event = f"chat{self.said}"
                    context.logger.info(event, **texts)
                yield batch

        def loss(forward, batch):
            if dist.is_initialized() and dist.get_rank() == knobs.fails_on_rank:
                raise RuntimeError("this rank cannot")
            value = torch.nn.functional.mse_loss(forward(batch["x"]), batch["y"])
            return value * torch.nan if knobs.diverges else value

        def evaluate(forward):
            return Evaluation(
                metrics={"mse": float(loss(forward, batch))}, primary="mse", higher_is_better=False
            )

        model = Recurrent() if knobs.recurrent else torch.nn.Linear(1, 1)
        if knobs.watch:
            model = Watched(context.run_folder / f"dtypes-{dist.get_rank()}")
        return TrainingJob(
            model=Half() if knobs.half else model,
            optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, fused=True),
            batches=batches,
            loss=loss,
            evaluate=evaluate,
            epochs=knobs.epochs,
        )

    def publish(self, context, model, report):
        folder = context.agent_folder / "published"
        folder.mkdir(exist_ok=True)
        torch.save(model.state_dict(), folder / "model.pt")
        return Publication(published=True, reason="first", metrics=report.evaluation.metrics)


class Half(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.secretly = torch.nn.Linear(1, 1)

    def forward(self, x):
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            return self.secretly(x)


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = torch.nn.LSTM(1, 1)

    def forward(self, x):
        return self.rnn(x)[0]


class Watched(torch.nn.Linear):
    """Writes down before which training call the dtype changed, and to what."""

    def __init__(self, path):
        super().__init__(1, 1)
        self.path, self.calls, self.dtype = path, 0, None

    def forward(self, x):
        y = super().forward(x)
        if self.training:
            if y.dtype != self.dtype:
                self.dtype = y.dtype
                with self.path.open("a") as file:
                    file.write(f"{self.calls} {y.dtype}\n")
            self.calls += 1
        return y

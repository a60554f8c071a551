"""What others have reported about training and operating: each row names the tests that show it.

Where no test of ours had the case, it is below, and where none can be there is a sentence why.
"""

import ast
import json
import math
import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from genesis_fp16.daemon.systemd import SystemdNotices
from genesis_fp16.settings import Settings
from genesis_fp16.store import DaemonLock
from genesis_fp16.store.daemon_status import LOCK_FILE
from infrastructure.training import FP16Trainer, FP16TrainingConfig

ROOT = Path(__file__).parents[2]
TRAINING, LOOP = "tests/infrastructure/training", "tests/infrastructure/training/loop"
DAEMON, HERE = "tests/genesis_fp16", "tests/reports/test_reports.py"

REPORTS = {
    "pytorch#88474, #115500": (
        f"{TRAINING}/test_buffer_restore.py::test_skipped_steps_leave_no_trace"
    ),
    "actor's loss leaves gradients in the critic": (
        f"{TRAINING}/test_own_gradients.py::test_three_trainers_skip_and_scale_as_three_scalers_do"
    ),
    "peft: a frozen base in half": (
        f"{TRAINING}/test_peft.py::test_it_trains_and_resumes_bit_for_bit_with_the_adapter_alone"
    ),
    "accelerate#4242": (
        f"{LOOP}/test_lr_schedule.py::test_skipped_steps_are_read_every_sixteen_steps"
    ),
    "accelerate#4289": (
        f"{TRAINING}/test_loss_scale.py::test_a_resumed_scale_continues_from_its_state"
    ),
    "DeepSpeed#8588": f"{HERE}::test_a_step_at_which_the_scale_grows_is_not_halved",
    "pytorch#153044": (
        f"{TRAINING}/precision/test_compiled_calls.py::test_compiled_steps_are_the_eager_ones"
    ),
    "optax#1754, lightning#20619": f"{HERE}::test_rows_without_gradient_stay_finite_in_fp16",
    "slime#1762": f"{HERE}::test_an_overflow_in_step_1_has_numbers_that_json_takes",
    "Soup#546": f"{HERE}::test_a_scale_that_is_far_too_high_refuses_no_save",
    "transformers#46731": (
        "No test: micro-batches of a window count alike, as `accumulate` documents, and a job's "
        "loss is its own. One that is a mean over tokens must divide by the tokens of the window."
    ),
    "OpenRLHF#1240, verl#6361, NeMo-RL#4120": (
        "tests/infrastructure/policy/losses/test_extremes.py::test_loss_and_gradient_are_finite"
    ),
    "nerfstudio#1919": (
        f"{TRAINING}/test_fp16_trainer.py::test_a_step_without_gradients_is_counted_and_harmless"
    ),
    "apscheduler#1021": f"{DAEMON}/domain/test_local_time.py::test_no_moment_is_due_for_ever",
    "agent-os#2472, temporal#8205": (
        f"{DAEMON}/domain/test_local_time.py::test_the_hour_that_occurs_twice"
    ),
    "apscheduler#1066, #752": (
        f"{DAEMON}/runs/test_schedule.py::test_a_clock_set_back_delays_no_agent"
    ),
    "procrastinate#1518": (
        f"{DAEMON}/executors/test_local.py::test_a_later_process_with_the_same_pid_is_not_the_worker"
    ),
    "dagster#33923": (
        f"{DAEMON}/runs/dispatcher/test_queue.py::test_a_cancel_is_final_whatever_retries_are_left"
    ),
    "dagster#10734, #22785, #16441": (
        f"{DAEMON}/runs/dispatcher/test_queue.py::test_turns_and_what_each_run_waits_for"
    ),
    "prefect#10188, #19771": (
        f"{DAEMON}/daemon/test_lost_database.py::"
        "test_a_locked_database_delays_neither_rollback_nor_exit"
    ),
    "Automodel#3390": (
        f"{DAEMON}/worker/test_main.py::test_a_full_disk_pauses_the_training_and_loses_nothing"
    ),
    "airflow#73164, dagster#34207": (
        f"{DAEMON}/executors/kubernetes/test_status.py::"
        "test_last_words_are_found_wherever_kubernetes_says_them"
    ),
    "happier#342": f"{HERE}::test_a_pid_in_the_lock_file_that_lives_again_keeps_no_daemon_away",
    "python-dotenv#600, pydantic-settings#985": (
        f"{DAEMON}/settings/test_source.py::test_a_misspelt_name_is_ignored_with_a_warning"
    ),
    "importlib_metadata#410, #457": (
        f"{DAEMON}/plugins/test_discovery.py::test_damaged_metadata_costs_only_its_own_distribution"
    ),
    "hermes-agent#55018": f"{HERE}::test_the_watchdog_is_told_in_every_round_without_a_floor",
    "Dagster#11191, #4480": f"{HERE}::test_nothing_is_exported_unless_it_is_asked_for",
    "ray#63968": (
        f"{DAEMON}/worker/test_main.py::"
        "test_notices_that_the_machine_is_taken_away_lead_to_a_checkpoint"
    ),
}


@pytest.mark.parametrize("report", REPORTS)
def test_each_report_has_its_test_or_a_reason(report: str) -> None:
    place, found, name = REPORTS[report].partition("::")
    if not found:
        assert place.startswith("No test: ")
        return
    names = {
        node.name
        for node in ast.walk(ast.parse((ROOT / place).read_text()))
        if isinstance(node, ast.FunctionDef)
    }
    assert name in names, f"{report}: {place} has no {name}"


def trainer_of(model: nn.Module, optimizer: torch.optim.Optimizer, **options: Any) -> FP16Trainer:
    return FP16Trainer(model, optimizer, FP16TrainingConfig(cpu_half=True, **options))


def test_a_step_at_which_the_scale_grows_is_not_halved() -> None:
    moved = []
    for interval in (1, 1000):  # it grows at each step, or never
        model = nn.Linear(1, 1, bias=False)
        nn.init.ones_(model.weight)
        trainer = trainer_of(
            model,
            torch.optim.SGD(model.parameters(), lr=0.125, fused=True),
            loss_scale=4.0,
            growth_interval=interval,
            max_grad_norm=1e9,
        )
        for _ in range(3):
            trainer.train_batch(torch.ones(1, 1), lambda forward, x: forward(x).sum())
        moved.append(model.weight.item())
        assert trainer.get_stats()["current_scale"] == (32.0 if interval == 1 else 4.0)
    assert moved == [1.0 - 3 * 0.125] * 2


def test_rows_without_gradient_stay_finite_in_fp16() -> None:
    model = nn.Sequential(nn.Embedding(8, 4), nn.Flatten(), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-8, fused=True)
    trainer = trainer_of(model, optimizer, loss_scale=128.0)
    trainer.cast_model_to_fp16()
    for _ in range(5):  # rows 1 to 7 never get a gradient; 1e-8 is 0 in FP16
        rows = torch.zeros(2, 1, dtype=torch.long)
        trainer.train_batch(rows, lambda forward, x: forward(x).square().mean())
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert trainer.overflow_steps == 0


def overflowing(loss_scale: float) -> FP16Trainer:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    return trainer_of(model, optimizer, loss_scale=loss_scale)


def mean_square(forward: Any, x: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = (forward(x) - 1.0).square().mean()
    return loss


def test_an_overflow_in_step_1_has_numbers_that_json_takes() -> None:
    trainer = overflowing(2.0**40)
    trainer.train_batch(torch.ones(8, 4), mean_square)
    stats = trainer.get_stats()
    assert trainer.overflow_steps == 1
    numbers = [value for value in stats.values() if isinstance(value, float)]
    assert all(math.isfinite(number) for number in numbers), stats
    json.loads(json.dumps(stats, allow_nan=False))


def test_a_scale_that_is_far_too_high_refuses_no_save(tmp_path: Path) -> None:
    trainer = overflowing(2.0**24)
    for _ in range(60):
        trainer.train_batch(torch.randn(8, 4), mean_square)
    assert 0 < trainer.overflow_steps < 60
    trainer.save_checkpoint(tmp_path / "final.pt")
    other = overflowing(2.0**24)
    other.load_checkpoint(tmp_path / "final.pt")
    assert all(
        torch.equal(ours, theirs)
        for ours, theirs in zip(trainer.model.parameters(), other.model.parameters(), strict=True)
    )


def test_a_pid_in_the_lock_file_that_lives_again_keeps_no_daemon_away(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home")
    settings.home.mkdir()
    (settings.home / LOCK_FILE).write_text(f'{{"pid": {os.getppid()}}}\n')  # it lives
    with DaemonLock(settings) as lock:
        lock.verify()


def test_the_watchdog_is_told_in_every_round_without_a_floor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "notify"
    monkeypatch.setenv("NOTIFY_SOCKET", str(path))
    monkeypatch.setenv("WATCHDOG_USEC", "500000")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(path))
        systemd.settimeout(10)
        with SystemdNotices() as notices:
            for _ in range(5):  # as fast as rounds come, 20 a second at most
                notices.send_watchdog()
                assert systemd.recv(100) == b"WATCHDOG=1"


def test_nothing_is_exported_unless_it_is_asked_for() -> None:
    assert Settings().otel is False

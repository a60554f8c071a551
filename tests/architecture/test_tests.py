"""Tests mirror the modules: each module has a test file at its path, or stands in `TESTED_BY`."""

from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOMS = ("genesis_fp16", "infrastructure", "agents")

# Modules (or patterns) without a test file of their own: the test that runs them, and why there.
TESTED_BY = {
    # Declarations: they do nothing by themselves.
    "genesis_fp16/domain/errors.py": "genesis_fp16/cli/test_store.py",
    # The control API is tested as it is served: by requests to its process.
    "genesis_fp16/api/*.py": "genesis_fp16/api/test_service.py",
    "genesis_fp16/api/page/*.py": "e2e/page/test_page.py",
    "genesis_fp16/daemon/attempt_summary.py": "genesis_fp16/cli/test_runs.py",
    "genesis_fp16/daemon/api_tokens.py": "genesis_fp16/daemon/test_control.py",
    "genesis_fp16/daemon/operator.py": "genesis_fp16/api/test_changes.py",
    "genesis_fp16/domain/listener.py": "genesis_fp16/metrics/test_feed.py",
    "genesis_fp16/executors/base.py": "genesis_fp16/executors/test_local.py",
    "genesis_fp16/runs/dispatcher/*.py": "genesis_fp16/runs/dispatcher/test_dispatcher.py",
    "genesis_fp16/executors/remote/deadline.py": "genesis_fp16/executors/ray/test_connection.py",
    "genesis_fp16/executors/remote/ending.py": "genesis_fp16/executors/remote/test_executor.py",
    "genesis_fp16/executors/remote/engine_thread.py": (
        "genesis_fp16/executors/remote/test_executor.py"
    ),
    "genesis_fp16/executors/remote/job.py": "genesis_fp16/executors/remote/test_executor.py",
    "genesis_fp16/domain/remote_attempt.py": "genesis_fp16/executors/remote/test_executor.py",
    "genesis_fp16/worker/remote.py": "genesis_fp16/executors/remote/test_executor.py",
    # Both halves of a mirror, as they run on a real store.
    "genesis_fp16/domain/stored_attempt.py": "genesis_fp16/executors/object_store/test_mirror.py",
    "genesis_fp16/executors/object_store/files.py": (
        "genesis_fp16/executors/object_store/test_mirror.py"
    ),
    "genesis_fp16/executors/object_store/order.py": (
        "genesis_fp16/executors/object_store/test_mirror.py"
    ),
    "genesis_fp16/executors/object_store/mirrors.py": (
        "genesis_fp16/executors/object_store/test_mirror.py"
    ),
    "genesis_fp16/worker/stored/__main__.py": "genesis_fp16/executors/object_store/test_mirror.py",
    "genesis_fp16/worker/stored/attempt.py": "genesis_fp16/executors/object_store/test_mirror.py",
    "genesis_fp16/worker/stored/folders.py": "genesis_fp16/executors/object_store/test_mirror.py",
    "genesis_fp16/worker/stored/patience.py": "genesis_fp16/executors/object_store/test_mirror.py",
    "genesis_fp16/worker/machine_report.py": "genesis_fp16/executors/test_check.py",
    "genesis_fp16/cli/executors.py": "genesis_fp16/executors/test_check.py",
    "genesis_fp16/metrics/series.py": "genesis_fp16/metrics/test_feed.py",
    "genesis_fp16/settings/types.py": "genesis_fp16/settings/test_settings.py",
    "genesis_fp16/store/unreadable_rows.py": "genesis_fp16/store/test_rows.py",
    "genesis_fp16/store/schema.py": "genesis_fp16/store/test_database.py",
    "genesis_fp16/store/migrations/*.py": "genesis_fp16/store/test_database.py",
    "infrastructure/events/command.py": "infrastructure/events/test_event_log.py",
    "infrastructure/events/precision_state.py": "infrastructure/events/test_event_log.py",
    "infrastructure/precision_lab/report/sections/section.py": (
        "infrastructure/precision_lab/report/sections/test_contents.py"
    ),
    "infrastructure/precision_lab/weights_hash.py": (
        "infrastructure/precision_lab/probe/test_compare.py"
    ),
    "infrastructure/precision_lab/errors.py": "genesis_fp16/cli/lab/test_errors.py",
    "infrastructure/precision_lab/numerics/*.py": (
        "infrastructure/precision_lab/numerics/test_numerics.py"
    ),
    "infrastructure/precision_lab/replay/measured.py": (
        "infrastructure/precision_lab/replay/test_replay.py"
    ),
    "infrastructure/precision_lab/freezing/assembly.py": (
        "infrastructure/precision_lab/freezing/test_agent_jobs.py"
    ),
    "genesis_fp16/daemon/agent_task.py": "genesis_fp16/daemon/test_preflight.py",
    "genesis_fp16/worker/lab.py": "genesis_fp16/cli/lab/test_freeze.py",
    "genesis_fp16/worker/profile.py": "genesis_fp16/daemon/test_profile.py",
    "infrastructure/training/optimizer_step.py": "infrastructure/training/test_fp16_trainer.py",
    "infrastructure/training/diagnostics/marked_calls.py": (
        "infrastructure/training/diagnostics/test_phase_clock.py"
    ),
    "infrastructure/training/profiling/product_flops.py": (
        "infrastructure/training/profiling/test_step_costs.py"
    ),
    "infrastructure/precision_lab/frozen/loading.py": (
        "infrastructure/precision_lab/frozen/test_folder.py"
    ),
    "infrastructure/precision_lab/frozen/saving.py": (
        "infrastructure/precision_lab/frozen/test_folder.py"
    ),
    "infrastructure/precision_lab/experiments/gradients.py": (
        "infrastructure/precision_lab/experiments/test_world_model.py"
    ),
    "infrastructure/precision_lab/bisect/cure.py": (
        "infrastructure/precision_lab/bisect/test_bisect.py"
    ),
    "infrastructure/precision_lab/bisect/noise_floor.py": (
        "infrastructure/precision_lab/bisect/test_bisect.py"
    ),
    "infrastructure/policy/rescoring.py": "infrastructure/policy/mismatch/test_attribution.py",
    "infrastructure/precision_lab/sweep/worker*.py": (
        "infrastructure/precision_lab/sweep/test_sweep.py"
    ),
    "infrastructure/world_model/networks/weights.py": (
        "infrastructure/world_model/test_model_files.py"
    ),
    "genesis_fp16/domain/last_training.py": "genesis_fp16/plugins/test_agent_folder.py",
    "infrastructure/events/preflight_report.py": (
        "infrastructure/training/diagnostics/preflight/test_verdict.py"
    ),
    "infrastructure/events/profile_report.py": "genesis_fp16/domain/test_profile_verdict.py",
    "infrastructure/policy/corrections/corrected.py": (
        "infrastructure/policy/corrections/test_correction.py"
    ),
    "agents/waltzrl/game/actor.py": "agents/waltzrl/game/test_training.py",
    "agents/waltzrl/game/dialogue.py": "agents/waltzrl/game/test_training.py",
    "agents/waltzrl/game/rates.py": "agents/waltzrl/game/test_training.py",
    "agents/se_darwin/result.py": "agents/test_se_darwin_agent.py",
    "agents/se_darwin/certainty/rivals.py": "agents/se_darwin/certainty/test_assessment.py",
    "agents/se_darwin/settings.py": "agents/test_se_darwin_agent.py",
    # Shells of a command or of a process: run as an operator, or the daemon, runs them.
    "genesis_fp16/cli/daemon.py": "e2e/test_life_of_a_run.py",
    "genesis_fp16/cli/doctor.py": "genesis_fp16/daemon/test_checks.py",
    "genesis_fp16/daemon/startup.py": "genesis_fp16/daemon/test_daemon.py",
    "genesis_fp16/worker/attempt_process.py": "genesis_fp16/worker/test_main.py",
    "genesis_fp16/worker/outcome.py": "genesis_fp16/worker/test_attempt_runner.py",
    "genesis_fp16/plugins/probe/__main__.py": "genesis_fp16/plugins/probe/test_parent.py",
    "genesis_fp16/cli/lab/frozen.py": "genesis_fp16/cli/lab/test_freeze.py",
    "genesis_fp16/cli/lab/options.py": "genesis_fp16/cli/lab/test_freeze.py",
    "genesis_fp16/cli/lab/progress.py": "genesis_fp16/cli/lab/test_freeze.py",
    # Parts of `train`: each is seen only in a training that goes on.
    "infrastructure/fleet/members.py": "infrastructure/fleet/test_fleet.py",
    "infrastructure/fleet/stacked_step.py": "infrastructure/fleet/test_fleet.py",
    "infrastructure/fleet/turns.py": "infrastructure/fleet/test_fleet.py",
    "infrastructure/training/loop/evaluations.py": "infrastructure/training/loop/test_train.py",
    "infrastructure/training/loop/options.py": "infrastructure/training/loop/test_train.py",
    "infrastructure/training/loop/training_loop.py": "infrastructure/training/loop/test_train.py",
    "infrastructure/training/loop/baseline.py": "infrastructure/training/loop/test_train.py",
    "infrastructure/training/loop/boundary.py": "infrastructure/training/loop/test_train.py",
    "infrastructure/training/loop/progress.py": "infrastructure/training/loop/test_train.py",
    "infrastructure/training/rounds/generation.py": (
        "infrastructure/training/rounds/test_on_policy.py"
    ),
    "infrastructure/training/rounds/rounds.py": "infrastructure/training/loop/test_train.py",
    "infrastructure/training/loop/statistics.py": "infrastructure/training/loop/test_train.py",
    "infrastructure/training/precision/switch.py": "infrastructure/training/test_fp16_trainer.py",
    "infrastructure/training/diagnostics/job_copy.py": (
        "infrastructure/training/diagnostics/preflight/test_preflight.py"
    ),
    # Parts of a fleet's step.
    "infrastructure/fleet/adam.py": "infrastructure/fleet/test_fleet.py",
    "infrastructure/fleet/forms.py": "infrastructure/fleet/test_sequential.py",
    "infrastructure/fleet/parameters.py": "infrastructure/fleet/test_fleet.py",
    "infrastructure/training/cuda_graphs/*.py": (
        "infrastructure/training/cuda_graphs/test_graphed_trainer.py"
    ),
    # What needs two ranks: one torchrun serves all.
    "infrastructure/training/checkpoints/shard*.py": (
        "infrastructure/training/distributed/test_distributed.py"
    ),
    "infrastructure/training/distributed/gradients.py": (
        "infrastructure/training/distributed/test_distributed.py"
    ),
    "infrastructure/training/distributed/modules.py": (
        "infrastructure/training/distributed/test_distributed.py"
    ),
    # Programs that SE-Darwin breaks and repairs, and those that run inside its sandbox.
    "agents/se_darwin/corpus/*.py": "agents/se_darwin/corpus/test_subject.py",
    "agents/se_darwin/faults/*.py": "agents/se_darwin/faults/test_draw.py",
    "agents/se_darwin/edits/*_rules.py": "agents/se_darwin/edits/test_edit_space.py",
    "agents/se_darwin/edits/scope.py": "agents/se_darwin/edits/test_edit_space.py",
    "agents/se_darwin/fork_server/batch.py": "agents/se_darwin/sandbox/test_sandbox.py",
    "agents/se_darwin/fork_server/candidate.py": "agents/se_darwin/sandbox/test_sandbox.py",
    "agents/se_darwin/fork_server/object_fields.py": "agents/se_darwin/fork_server/test_wire.py",
    "agents/se_darwin/fork_server/probing.py": "agents/se_darwin/effects/test_measurement.py",
    "agents/se_darwin/fork_server/visits.py": "agents/se_darwin/effects/test_measurement.py",
    "agents/se_darwin/fork_server/server.py": "agents/se_darwin/sandbox/test_sandbox.py",
    "agents/se_darwin/fork_server/log_capture.py": "agents/se_darwin/fork_server/test_fixtures.py",
    "agents/se_darwin/fork_server/refusal.py": "agents/se_darwin/solution/test_preparation.py",
    "agents/se_darwin/sandbox/found_tests.py": "agents/se_darwin/sandbox/test_pytest_suite.py",
    "agents/se_darwin/solution/recording.py": "agents/se_darwin/command/test_evolve.py",
}


@pytest.fixture(scope="module")
def modules(root: Path) -> dict[str, bool]:
    """Whether each module has a test file at its path; ``__main__`` has ``test_main``."""
    return {
        path.relative_to(root).as_posix(): (
            root / "tests" / path.relative_to(root).with_name(f"test_{path.stem.strip('_')}.py")
        ).exists()
        for room in ROOMS
        for path in sorted((root / room).rglob("*.py"))
        if path.name != "__init__.py" and "__pycache__" not in path.parts
    }


def test_each_module_has_its_test_file_or_a_test_that_runs_it(modules: dict[str, bool]) -> None:
    untested = [
        module
        for module, has_file in modules.items()
        if not has_file and not any(fnmatch(module, pattern) for pattern in TESTED_BY)
    ]
    assert untested == []


def test_the_table_names_only_what_is_there(root: Path, modules: dict[str, bool]) -> None:
    unused = [
        pattern
        for pattern in TESTED_BY
        if not any(fnmatch(module, pattern) for module, has_file in modules.items() if not has_file)
    ]
    assert unused == []
    assert [test for test in TESTED_BY.values() if not (root / "tests" / test).is_file()] == []

"""The executor that the settings name, and what they say about the jobs of an agent."""

from __future__ import annotations

import sys
from collections.abc import Callable

import structlog

from genesis_fp16.executors.base import Executor
from genesis_fp16.executors.bucket import Mirrors
from genesis_fp16.executors.local import LocalExecutor
from genesis_fp16.executors.remote import Engine, RemoteExecutor, Resources
from genesis_fp16.executors.remote.executor import JobOptions
from genesis_fp16.settings import Settings
from genesis_fp16.system.bucket import Bucket

NO_USE_OF_URL = "GENESIS_SHARED_URL is set, but with GENESIS_EXECUTOR=local nothing uses it"
REMEDY_OF_URL = "set GENESIS_EXECUTOR to slurm, ray or kubernetes, or delete GENESIS_SHARED_URL"

log = structlog.get_logger()


def make_executor(settings: Callable[[], Settings]) -> Executor:
    """The executor that the settings name; *settings* returns those in force."""
    engine = make_engine(settings())
    if engine is None:
        if settings().shared_url is not None:
            log.warning("shared_url_unused", reason=NO_USE_OF_URL, remedy=REMEDY_OF_URL)
        return LocalExecutor()
    return RemoteExecutor(
        engine,
        lambda agent: job_options(settings(), agent),
        mirrors=make_mirrors(settings()),
    )


def make_mirrors(settings: Settings) -> Mirrors | None:
    """Mirrors in the bucket that the settings name; None if machines share the home's folder."""
    url = settings.shared_url
    return None if url is None else Mirrors(Bucket(url), settings.home.absolute())


def make_engine(settings: Settings) -> Engine | None:
    """The engine that the settings name; None if workers run on this machine."""
    match settings.executor:
        case "slurm":
            from genesis_fp16.executors.slurm import SlurmEngine

            return SlurmEngine(settings.slurm_options)
        case "ray":
            from genesis_fp16.executors.ray import RayEngine

            return RayEngine(settings.ray_address, settings.ray_token_file)
        case "kubernetes":
            from genesis_fp16.executors.kubernetes import KubernetesEngine

            return KubernetesEngine(settings, None if settings.shared_url else settings.home)
        case _:
            return None


def job_options(settings: Settings, agent: str) -> JobOptions:
    """What the settings say about the jobs of *agent*."""
    agent_settings = settings.for_agent(agent)
    return JobOptions(
        python=settings.remote_python or sys.executable,
        resources=Resources(
            cpus=agent_settings.job_cpus or settings.job_cpus,
            gpus=job_gpus(settings, agent),
            memory_mib=agent_settings.job_memory_mib or settings.job_memory_mib,
            minutes=agent_settings.job_minutes or settings.job_minutes,
        ),
        stop_seconds=settings.stop_timeout_seconds,
        run_seconds=settings.run_timeout_seconds,
    )


def job_gpus(settings: Settings, agent: str) -> int:
    """GPUs of a job of *agent*."""
    of_agent = settings.for_agent(agent).job_gpus
    return settings.job_gpus if of_agent is None else of_agent

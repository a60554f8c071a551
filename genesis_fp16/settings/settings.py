"""The settings: what there is to set, each with its type, its default and what it means."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    PrivateAttr,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

from genesis_fp16.domain.guard import GuardSettings
from genesis_fp16.domain.run_spec import Parallel
from genesis_fp16.domain.setting_types import EMPTY_IS_NONE, Count, CountOrNone, Seconds
from genesis_fp16.settings.env_file import Variable
from genesis_fp16.settings.rules import INITIAL_LOSS_SCALE, ORDERS, contradicted
from genesis_fp16.settings.trainer import TrainerSettings
from genesis_fp16.settings.types import DatabaseUrl, HomeFolder, Host, ScheduleText
from infrastructure.events.precision_state import PrecisionWish

DEFAULT_ENV_FILE = Path(".env")
AGENTS_PREFIX = "GENESIS_AGENTS__"
_CREDENTIALS = re.compile(r"(?<=://).*@")


class AgentSettings(BaseModel):
    """What an operator may say about one agent: ``GENESIS_AGENTS__<NAME>__...``."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    enabled: bool = True
    """false: it is not loaded, and its waiting runs are cancelled."""
    schedule: ScheduleText = None
    """When it runs, such as 'every 30m' or 'cron 0 3 * * mon' (UTC); empty: the agent's own."""
    precision: Annotated[PrecisionWish | None, EMPTY_IS_NONE] = None
    """fp32, fp16, bf16 or auto; empty: GENESIS_PRECISION. Hot."""
    processes_per_run: Annotated[int, Field(ge=1, le=1024)] = 1
    """Processes that train together on this machine, one for each CUDA device; 1: no torchrun."""
    parallel: Parallel = "ddp"
    """How they share the model: ddp, fsdp2 or fsdp2-policy; see docs/distributed.md."""
    settings: dict[str, JsonValue] = {}
    """The agent's own settings, one variable each: ...__SETTINGS__<KEY>=value or JSON."""


class Settings(TrainerSettings, GuardSettings):
    """Every setting with its default. Construct it directly in tests: it reads nothing itself."""

    model_config = ConfigDict(validate_default=True)  # a default may contradict what is set

    enable_fp16_training: bool = True
    """The rollback switch: false means FP32 for every agent within 2 seconds. Hot."""
    precision: Literal["fp16", "bf16", "auto"] = "fp16"
    """Half type where nobody demands FP32: fp16, bf16, or auto for what measures best. Hot."""
    cpu_half: bool = False
    """Whether half precision may run on a CPU, for tests and demonstrations."""
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d{1,3})?)$")] = "auto"
    """auto, cpu, cuda or cuda:N."""
    slots: Annotated[int, Field(ge=1, le=1024)] = 1
    """Runs at the same time."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of the first run of each agent; later runs derive theirs from it."""
    worker_threads: Annotated[int, Field(ge=0, le=1024)] = 1
    """Torch CPU threads of a worker; small models gain nothing from more; 0: torch's default."""
    budget_seconds: Seconds = 120.0
    """Seconds a run may spend on collecting."""
    budget_transitions: Count = 20000
    """Transitions a run may collect."""
    stats_interval_steps: Count = 20
    """Steps between two reads of the device for the metrics."""
    baseline_interval_steps: CountOrNone = 500
    """Steps between two comparisons of half precision with FP32 on one frozen batch; 0: none."""
    baseline_every_runs: CountOrNone = 0
    """After so many runs in half precision the last is repeated in FP32, to compare; 0: never."""
    checkpoint_interval_seconds: Seconds = 15.0
    """Seconds, at most, between two checkpoints."""
    keep_checkpoints: Annotated[int, Field(ge=1, le=1000)] = 2
    """Checkpoints kept of a run."""
    keep_runs: Count = 10
    """Newest ended runs of each agent that keep their checkpoints."""
    keep_run_days: Annotated[int, Field(ge=0, le=36500)] = 90
    """Days after its end that a run not among the newest keeps its folder and log; 0: for ever."""
    max_attempts: Annotated[int, Field(ge=1, le=1000)] = 3
    """Attempts of a run before it counts as failed."""
    retry_backoff_seconds: Seconds = 5.0
    """Seconds before the first retry; doubled for each further one."""
    start_timeout_seconds: Seconds = 60.0
    """Seconds a worker has to report that it is up."""
    no_progress_timeout_seconds: Seconds = 300.0
    """Seconds a worker may say nothing."""
    run_timeout_seconds: Seconds = 14400.0
    """Seconds a run may take, over all its attempts."""
    stop_timeout_seconds: Seconds = 8.0
    """Seconds a worker has to checkpoint and stop before it is killed."""
    probe_timeout_seconds: Seconds = 30.0
    """Seconds a plugin has to load in its probe before it is quarantined."""
    home: HomeFolder = Path(".genesis")
    """Folder of the database, runs, models and the lock."""
    database_url: DatabaseUrl = Field(default=None, repr=False)
    """SQLAlchemy URL of the database; empty: SQLite in GENESIS_HOME."""
    env_file: Path = DEFAULT_ENV_FILE
    """The file settings are read from; only the environment can name it."""
    metrics_host: Host = "127.0.0.1"
    """Address /metrics, /healthz and /readyz listen on."""
    metrics_port: Annotated[int, Field(ge=0, le=65535)] = 9464
    """Port of the same; 0 takes a free one."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """debug, info, warning or error."""
    log_format: Literal["auto", "console", "json"] = "auto"
    """console, json, or auto: console on a terminal, JSON elsewhere."""
    agents: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")], AgentSettings] = Field(
        default={}
    )
    """Settings of single agents."""

    _variables: dict[str, Variable] = PrivateAttr(default_factory=dict)
    _shadowed: tuple[str, ...] = PrivateAttr(default=())

    @field_validator(*{field for order in ORDERS for field in order})
    @classmethod
    def _agrees_with_the_others(cls, value: object, info: ValidationInfo) -> object:
        found = contradicted(info.field_name or "", value, info.data)
        if found is None:
            return value
        relation, other = found
        bound = info.data[other] or INITIAL_LOSS_SCALE
        message = f"must not be {relation} {variable_name(other)}={bound}: change either"
        raise PydanticCustomError("contradiction", message)

    def read_from(
        self, env_file: Path, variables: Mapping[str, Variable], shadowed: Sequence[str]
    ) -> Settings:
        """A copy that knows where it comes from.

        Args:
            env_file: The file that was read.
            variables: All that were found, by name.
            shadowed: See `shadowed`.
        """
        copy = self.model_copy(update={"env_file": env_file})
        copy._variables, copy._shadowed = dict(variables), tuple(shadowed)
        return copy

    @property
    def shadowed(self) -> tuple[str, ...]:
        """Variables that the file sets in vain, since the environment sets them otherwise."""
        return self._shadowed

    def for_agent(self, name: str) -> AgentSettings:
        """Settings of the agent *name* (``se-darwin`` reads the key ``se_darwin``)."""
        return self.agents.get(name.replace("-", "_"), AgentSettings())

    def source_of(self, name: str) -> str:
        """Where the attribute *name* comes from: file and line, environment or default.

        Raises:
            KeyError: There is no such attribute.
        """
        variable = variable_name(name)
        if name == "agents":
            found = [v.source for k, v in self._variables.items() if k.startswith(AGENTS_PREFIX)]
            return ", ".join(found) or "default"
        return self._variables[variable].source if variable in self._variables else "default"

    def describe(self) -> list[tuple[str, str, str]]:
        """Variable, value (secrets redacted) and source of everything in force."""
        lines = []
        for name in Settings.model_fields:
            if name != "agents":
                value = shown(variable_name(name), getattr(self, name))
                lines.append((variable_name(name), value, self.source_of(name)))
        for name, variable in self._variables.items():
            if name.startswith(AGENTS_PREFIX):
                lines.append((name, variable.value, variable.source))
        return lines


def variable_name(field: str) -> str:
    """Name of the environment variable of the attribute *field* of `Settings`.

    Raises:
        KeyError: There is no such attribute.
    """
    if field not in Settings.model_fields:
        raise KeyError(f"{field!r} is no setting; there are {', '.join(Settings.model_fields)}")
    own = field.startswith(("fp16_", "enable_fp16_"))  # names that others have promised
    return field.upper() if own else f"GENESIS_{field.upper()}"


VARIABLES = {variable_name(name): name for name in Settings.model_fields if name != "agents"}


def written(value: object) -> str:
    """*value* as a variable holds it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def shown(name: str, value: object) -> str:
    """*value* of the variable *name* as a person may see it: without credentials."""
    if value is None:
        return ""
    if name == variable_name("database_url"):
        return _CREDENTIALS.sub("***@", written(value).partition("?")[0])
    return written(value)

"""The settings: the name, type, default and meaning of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

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
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from genesis_fp16.domain.guard import Decision, GuardSettings
from genesis_fp16.domain.redaction import HIDDEN, shown, visible, without_userinfo
from genesis_fp16.domain.run_spec import Parallel, TrainerOptions
from genesis_fp16.settings.env_file import ENVIRONMENT, ROLLBACK_FLAG, Variable
from genesis_fp16.settings.kubernetes import KubernetesSettings
from genesis_fp16.settings.types import (
    ApiToken,
    DatabaseUrl,
    ExplorationText,
    HomeFolder,
    Host,
    HostNames,
    NoticeUrl,
    Options,
    PresetName,
    RayAddress,
    ScheduleText,
    SharedUrl,
    TimeZone,
    TokenFile,
)
from infrastructure.agent_contract import Schedule
from infrastructure.agent_contract.schedule import CatchUp, MissingHour, Overlap, RepeatedHour
from infrastructure.events.precision_state import PrecisionWish
from infrastructure.events.role_precision import PRESETS, RolePrecisions
from infrastructure.options import LoopSettings
from infrastructure.options.setting_types import (
    Count,
    CountOrZero,
    Hot,
    ModuleNames,
    OrEmpty,
    Seconds,
    hot_fields,
)

DEFAULT_ENV_FILE = Path(".env")
AGENTS_PREFIX = "GENESIS_AGENTS__"
INITIAL_LOSS_SCALE = 65536.0  # where FP16_LOSS_SCALE is empty
_ORDERED = (  # the first of each pair must not exceed the second
    ("min_loss_scale", "loss_scale"),
    ("guard_sustained_ratio", "guard_storm_ratio"),
    ("guard_cooldown_seconds", "guard_cooldown_limit_seconds"),
)


class AgentSettings(BaseModel):
    """Settings of one agent: ``GENESIS_AGENTS__<NAME>__...``."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    enabled: OrEmpty[bool] = None
    """Whether the agent is loaded; false cancels its waiting runs; empty: the agent's default."""
    schedule: Hot[ScheduleText] = None
    """'every 30m', 'every 500 outcomes, at most hourly', 'cron 0 3 * * mon'; empty: its own."""
    catch_up: Hot[OrEmpty[CatchUp]] = None
    """Runs for due times that were missed: none, latest or all; empty: the agent's own choice."""
    overlap: Hot[OrEmpty[Overlap]] = None
    """If a run is unfinished when the next is due: skip, queue or replace; empty: the agent's."""
    repeated_hour: Hot[OrEmpty[RepeatedHour]] = None
    """GENESIS_REPEATED_HOUR of this agent; empty: the general one."""
    missing_hour: Hot[OrEmpty[MissingHour]] = None
    """GENESIS_MISSING_HOUR of this agent; empty: the general one."""
    priority: Hot[Annotated[int, Field(ge=-100, le=100)]] = 0
    """Priority of its runs in the queue, -100 to 100; those of higher ones start first."""
    seconds_per_day: Hot[OrEmpty[Seconds]] = None
    """Seconds that its runs may train a day, in GENESIS_TIMEZONE; empty: without limit."""
    precision: Hot[OrEmpty[PrecisionWish]] = None
    """Precision of this agent: fp32, fp16, bf16 or auto; empty: GENESIS_PRECISION."""
    explore: Hot[ExplorationText] = ""
    """Exploration of decisions: epsilon 0.1, softmax 0.2 or softmax 0.2 floor 0.02; empty: none."""
    role_precision: Hot[PresetName] = None
    """Preset of precisions by role, docs/how-to/policies.md; empty: the one of its job."""
    keep_fp32: Hot[ModuleNames] = ""
    """Modules that stay in FP32, from the next attempt on; separated by commas; * is a wildcard."""
    guard_ladder: Hot[OrEmpty[bool]] = None
    """GENESIS_GUARD_LADDER of this agent; empty: the general one."""
    keep_models: OrEmpty[Annotated[int, Field(ge=1, le=1000)]] = None
    """Number of versions of its published model that are kept; empty: GENESIS_KEEP_MODELS."""
    processes_per_run: Annotated[int, Field(ge=1, le=1024)] = 1
    """Processes on this machine that train one model, one per CUDA device; 1: no torchrun."""
    job_cpus: Hot[OrEmpty[Count]] = None
    """CPU cores of a job of this agent; empty: GENESIS_JOB_CPUS."""
    job_gpus: Hot[OrEmpty[CountOrZero]] = None
    """GPUs of a job of this agent; empty: GENESIS_JOB_GPUS."""
    job_memory_mib: Hot[OrEmpty[Count]] = None
    """Memory of a job of this agent in MiB; empty: GENESIS_JOB_MEMORY_MIB."""
    job_minutes: Hot[OrEmpty[Count]] = None
    """Minutes after which the engine may end a job of this agent; empty: GENESIS_JOB_MINUTES."""
    parallel: Parallel = "ddp"
    """How processes share the model: ddp, fsdp2 or fsdp2-policy; docs/how-to/distributed.md."""
    settings: dict[str, JsonValue] = {}
    """The agent's own settings, one variable each: ...__SETTINGS__<KEY>=value or JSON."""

    @field_validator("role_precision")
    @classmethod
    def _check_half_type(cls, value: str | None, info: ValidationInfo) -> str | None:
        half = PRESETS[value].half if value else None
        precision = info.data.get("precision")
        if half is not None and precision not in (None, "fp32", half):
            message = (
                f"the policy of {value} computes in {half}, but PRECISION of this agent is "
                f"{precision}; remove PRECISION, or set it to {half} or fp32"
            )
            raise PydanticCustomError("contradiction", "{text}", {"text": message})
        return value

    @property
    def role_preset(self) -> RolePrecisions | None:
        """The preset that `role_precision` names."""
        return PRESETS[self.role_precision] if self.role_precision else None

    @property
    def fp32_modules(self) -> tuple[str, ...]:
        """`keep_fp32` one by one."""
        return tuple(name.strip() for name in self.keep_fp32.split(",") if name.strip())


_AGENT_DEFAULTS = AgentSettings()  # made once: it is asked for in every round of the loop


class Settings(TrainerOptions, LoopSettings, GuardSettings, KubernetesSettings, BaseSettings):
    """Every setting with its default; `load_settings` reads them, `Settings(...)` reads nothing."""

    model_config = SettingsConfigDict(
        env_prefix="GENESIS_", env_nested_delimiter="__", case_sensitive=True
    )

    enable_fp16_training: Hot[bool] = Field(default=True, validation_alias=ROLLBACK_FLAG)
    """The rollback switch: false moves every agent to FP32; on this machine within 2 seconds."""
    precision: Hot[Literal["fp16", "bf16", "auto"]] = "fp16"
    """Precision unless something demands FP32: fp16, bf16, or auto to measure and choose."""
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d{1,3})?)$")] = "auto"
    """Device to train on: auto, cpu, cuda or cuda:N."""
    slots: Annotated[int, Field(ge=1, le=1024)] = 1
    """Largest number of runs that train at the same time, each in a worker of its own."""
    timezone: Hot[TimeZone] = "UTC"
    """Time zone of cron schedules that name none, such as Europe/Helsinki."""
    repeated_hour: Hot[OrEmpty[RepeatedHour]] = None
    """When clocks repeat an hour, what is due in it: first, second, both; empty: the agent's."""
    missing_hour: Hot[OrEmpty[MissingHour]] = None
    """When clocks skip an hour, what is due in it: skip or shift by an hour; empty: the agent's."""
    prewarm: Hot[bool] = False
    """Whether a process with torch imported waits for the next run; it takes 170 MiB of memory."""
    executor: Literal["local", "slurm", "ray", "kubernetes"] = "local"
    """Where workers run: local, or jobs of slurm, ray or kubernetes; docs/how-to/executors.md."""
    shared_url: SharedUrl = None
    """fsspec URL, e.g. s3://bucket/prefix, for machines that share no folder with the daemon."""
    remote_python: OrEmpty[str] = None
    """Python with the same packages on the cluster's machines; empty: the daemon's own path."""
    job_cpus: Hot[Count] = 1
    """CPU cores of a job; at least one for each of its processes."""
    job_gpus: Hot[CountOrZero] = 0
    """GPUs of a job; 0: it trains on the CPU, in FP32."""
    job_memory_mib: Hot[OrEmpty[Count]] = None
    """Memory of a job in MiB; empty: the engine's default."""
    job_minutes: Hot[OrEmpty[Count]] = None
    """Minutes after which the engine may end a job; empty: the engine's default."""
    preemption_file: TokenFile = None
    """File whose appearance on a worker's machine announces that it is taken away; empty: none."""
    preemption_url: NoticeUrl = None
    """URL that announces it, as clouds' metadata services do; docs/how-to/executors.md."""
    slurm_options: Options = ""
    """More options of sbatch, for example --partition=gpu --account=lab."""
    ray_address: RayAddress = "http://127.0.0.1:8265"
    """URL of the dashboard of the Ray cluster, for GENESIS_EXECUTOR=ray."""
    ray_token_file: TokenFile = None
    """File with the Ray cluster's token; empty: it demands none; docs/how-to/executors.md."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of each agent's first run; later runs derive theirs from it."""
    worker_threads: Annotated[int, Field(ge=0, le=1024)] = 1
    """Torch CPU threads of a worker; more do not help small models; 0: torch's default."""
    budget_seconds: Seconds = 120.0
    """Seconds that a run may spend collecting transitions."""
    budget_transitions: Count = 20000
    """Number of transitions that a run may collect."""
    mismatch_interval_rounds: CountOrZero = 10
    """Rounds of a policy job between two comparisons of trainer and rollout; 0: none."""
    baseline_every_runs: CountOrZero = 3
    """After this many half-precision runs the last is repeated in FP32 to compare; 0: never."""
    keep_runs: Count = 10
    """Number of newest ended runs of each agent that keep their checkpoints."""
    keep_run_days: Annotated[int, Field(ge=0, le=36500)] = 90
    """Days until an ended run is deleted with its log, unless among the newest; 0: never."""
    keep_models: Annotated[int, Field(ge=1, le=1000)] = 5
    """Number of versions of an agent's published model that are kept, the one in use included."""
    max_attempts: Annotated[int, Field(ge=1, le=1000)] = 3
    """Number of attempts before a run counts as failed."""
    retry_backoff_seconds: Seconds = 5.0
    """Seconds before the first retry; the delay doubles with each further retry."""
    start_timeout_seconds: Seconds = 60.0
    """Seconds in which a worker must report its start."""
    no_progress_timeout_seconds: Seconds = 300.0
    """Seconds without an event after which a worker is stopped."""
    run_timeout_seconds: Seconds = 14400.0
    """Seconds that a run may take, over all its attempts."""
    stop_timeout_seconds: Seconds = 8.0
    """Seconds in which a worker must checkpoint and stop before it is killed."""
    probe_timeout_seconds: Seconds = 30.0
    """Seconds in which a plugin must load in its probe; otherwise it is quarantined."""
    home: HomeFolder = Path(".genesis")
    """Folder of the database, runs, models and the lock."""
    database_url: DatabaseUrl = Field(default=None, repr=False)
    """SQLAlchemy URL of the database; empty: SQLite in GENESIS_HOME."""
    standby: bool = False
    """Whether this daemon waits while another one leads, and takes over; needs PostgreSQL."""
    takeover_seconds: Annotated[float, Field(ge=4.0, le=600.0, allow_inf_nan=False)] = 7.0
    """Seconds without a beat of the leading daemon until a standby takes over; PostgreSQL only."""
    env_file: Path = DEFAULT_ENV_FILE
    """The settings file; only the environment can name it."""
    attached_env_file: TokenFile = None
    """Settings file of an attached Genesis; false there, too, moves every agent to FP32."""
    metrics_host: Host = "127.0.0.1"
    """Address on which /metrics, /healthz and /readyz listen."""
    metrics_port: Annotated[int, Field(ge=0, le=65535)] = 9464
    """Port of /metrics, /healthz and /readyz; 0: any free port."""
    api_socket: bool = True
    """Whether the control API listens on control.sock in GENESIS_HOME, for its user alone."""
    api_host: Host = "127.0.0.1"
    """Address of the control API and the page on TCP, if GENESIS_API_PORT is set."""
    api_port: OrEmpty[Annotated[int, Field(ge=0, le=65535)]] = None
    """TCP port of the API and the page, to which alerts link; 0: any free port; empty: no TCP."""
    api_token: ApiToken = Field(default=None, repr=False)
    """Token that the control API demands on TCP, 16 or more characters; docs/reference/api.md."""
    api_token_file: TokenFile = None
    """File of tokens, one a line: NAME TOKEN [ROLE [DATE]]; read again whenever it changes."""
    api_allowed_hosts: HostNames = ""
    """Host names of the page besides localhost and addresses, separated by commas."""
    predictor: bool = True
    """Whether agents may ask on predict.sock; a process answers from the first request on."""
    predict_group: OrEmpty[str] = None
    """Group whose accounts may use predict.sock besides the daemon's user; empty: none."""
    predict_host: Host = "127.0.0.1"
    """Address of the predictor on TCP, if GENESIS_PREDICT_PORT is set."""
    predict_port: OrEmpty[Annotated[int, Field(ge=0, le=65535)]] = None
    """TCP port of the predictor, which demands a token of the API; 0: any free; empty: no TCP."""
    predict_models: Annotated[int, Field(ge=1, le=100000)] = 200
    """Largest number of models that the predictor keeps in memory."""
    predict_own_mib: Annotated[int, Field(ge=256, le=1 << 20)] = 2048
    """Largest memory in MiB of an agent's own predictor process, which runs its build_model."""
    predict_shared: bool = False
    """Whether predict-servers get models, and give outcomes, through GENESIS_SHARED_URL."""
    predict_outcome_seconds: Seconds = 86400.0
    """Seconds after a decision in which its outcome counts as the decision's."""
    otel: bool = False
    """Whether traces, metrics and logs are exported over OTLP; docs/how-to/opentelemetry.md."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is logged: debug, info, warning or error."""
    log_format: Literal["auto", "console", "json"] = "auto"
    """Format of the log: console, json, or auto (console on a terminal, JSON elsewhere)."""
    agents: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")], AgentSettings] = {}
    """Settings of single agents."""

    _variables: dict[str, Variable] = PrivateAttr(default_factory=dict)
    _shadowed: tuple[str, ...] = PrivateAttr(default=())
    _texts: dict[str, dict[str, str]] = PrivateAttr(default_factory=dict)
    _removed: dict[str, str] = PrivateAttr(default_factory=dict)
    _unknown: dict[str, str] = PrivateAttr(default_factory=dict)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003  # the library's signature
        init_settings: PydanticBaseSettingsSource,
        *_: PydanticBaseSettingsSource,
        **__: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take values from the arguments alone, not from the library's own sources."""
        return (init_settings,)

    @field_validator(*{field for pair in _ORDERED for field in pair})
    @classmethod
    def _check_order(cls, value: float | None, info: ValidationInfo) -> float | None:
        field = info.field_name
        known: dict[Any, Any] = {**info.data, field: value}
        if known.get("loss_scale", 0.0) is None:
            known["loss_scale"] = INITIAL_LOSS_SCALE
        for low, high in _ORDERED:
            if field in (low, high) and known.keys() >= {low, high} and known[low] > known[high]:
                relation, bound = ("above", high) if field == low else ("below", low)
                message = f"must not be {relation} {variable_name(bound)}={known[bound]}"
                raise PydanticCustomError("contradiction", f"{message}; change either")
        return value

    def record_sources(
        self,
        variables: Mapping[str, Variable],
        shadowed: Iterable[str],
        texts: Mapping[str, dict[str, str]],
    ) -> None:
        """Record the variables that were found, `shadowed` ones, their `texts`."""
        self._variables, self._shadowed = dict(variables), tuple(shadowed)
        self._texts = dict(texts)

    def record_ignored(self, removed: Mapping[str, str], unknown: Mapping[str, str]) -> None:
        """Record the `removed` and the `unknown` settings that were found."""
        self._removed, self._unknown = dict(removed), dict(unknown)

    def texts_of(self, name: str) -> Mapping[str, str]:
        """Texts of the variable *name* by place: ``environment`` or the file's absolute path."""
        return self._texts.get(name, {})

    @property
    def has_secrets_in_file(self) -> bool:
        """Whether the settings file contains a value that `describe` hides."""
        return any(
            HIDDEN in display(name, text)
            for name, texts in self._texts.items()
            for place, text in texts.items()
            if place != ENVIRONMENT
        )

    @property
    def home_is_named_in_file(self) -> bool:
        """Whether the settings file names the home, which is lost if that file is."""
        return bool(self.texts_of(variable_name("home")).keys() - {ENVIRONMENT})

    @property
    def shadowed(self) -> tuple[str, ...]:
        """Variables whose value in the file has no effect: the environment sets another one."""
        return self._shadowed

    @property
    def removed(self) -> Mapping[str, str]:
        """Settings of earlier releases that are set and ignored: name to a warning."""
        return self._removed

    @property
    def unknown(self) -> Mapping[str, str]:
        """Names with our prefix that are not settings: name to a warning."""
        return self._unknown

    def for_agent(self, name: str) -> AgentSettings:
        """Settings of the agent *name* (``se-darwin`` reads the key ``se_darwin``)."""
        return self.agents.get(name.replace("-", "_"), _AGENT_DEFAULTS)

    def search_seconds_of(self, agent: str) -> float:
        """Time of a search for the modules that *agent* must have in FP32; 0 for none."""
        own = self.for_agent(agent).guard_ladder
        wanted = self.guard_ladder if own is None else own
        return self.guard_search_seconds if self.guard_enabled and wanted else 0.0

    def guard_decision(self, decision: Decision) -> Decision:
        """*decision* as these settings allow it: perhaps FP32 in place of a rung, or nothing."""
        if not self.guard_enabled:
            return Decision(agent=decision.agent)
        if decision.descended and not self.search_seconds_of(decision.agent):
            return replace(decision, modules=(), parts={}, roles={})
        return decision

    def schedule_for(self, name: str, default: Schedule) -> Schedule:
        """The schedule of the agent *name*: its own, *default*, with what the operator has set."""
        agent = self.for_agent(name)
        times = replace(
            default if agent.schedule is None else Schedule.parse(agent.schedule),
            catch_up=agent.catch_up or default.catch_up,
            overlap=agent.overlap or default.overlap,
        )
        if times.cron is None:
            return times
        return replace(
            times,
            timezone=times.timezone or (None if self.timezone == "UTC" else self.timezone),
            repeated_hour=agent.repeated_hour or self.repeated_hour or default.repeated_hour,
            missing_hour=agent.missing_hour or self.missing_hour or default.missing_hour,
        )

    def trainer_options(self) -> TrainerOptions:
        """The options of the training step alone, for a `RunSpec`."""
        return TrainerOptions(**{name: getattr(self, name) for name in TrainerOptions.model_fields})

    def loop_settings(self) -> LoopSettings:
        """The options of the training loop alone, for a `RunSpec`."""
        return LoopSettings(**{name: getattr(self, name) for name in LoopSettings.model_fields})

    def source_of(self, field: str) -> str:
        """Where the value of *field* is set: file and line, ``environment`` or ``default``.

        Raises:
            KeyError: *field* is not a setting.
        """
        name = variable_name(field)
        return self._variables[name].source if name in self._variables else "default"

    def describe(self) -> list[tuple[str, str, str]]:
        """Variable, value (without credentials) and source of every setting."""
        general = [
            (name, display(name, getattr(self, field)), self.source_of(field))
            for name, field in VARIABLES.items()
        ]
        return general + [
            (name, display(name, variable.value), variable.source)
            for name, variable in self._variables.items()
            if name.startswith(AGENTS_PREFIX)
        ]

    def with_hot_settings_of(
        self, other: Settings, *, in_use: Callable[[str], bool] = lambda _key: True
    ) -> Settings:
        """A copy of these settings with the hot ones of *other*, and with *other*'s sources.

        Of an agent whose key is not *in_use*, all settings are those of *other*.
        """
        hot = hot_fields(Settings)
        cold = {name: getattr(self, name) for name in Settings.model_fields if name not in hot}
        agents = {}
        for key in {**self.agents, **other.agents}:
            if not in_use(key):
                agents[key] = other.agents.get(key, _AGENT_DEFAULTS)
                continue
            current, new = self.for_agent(key), other.for_agent(key)
            hot_values = {name: getattr(new, name) for name in _HOT_OF_AGENT}
            agents[key] = new if current == new else current.model_copy(update=hot_values)
        return other.model_copy(update={**cold, "agents": agents})

    def with_flag_of(self, other: Settings) -> Settings:
        """A copy of these settings with ``ENABLE_FP16_TRAINING`` as in *other*, and its source."""
        field = VARIABLES[ROLLBACK_FLAG]
        changed = self.model_copy(update={field: getattr(other, field)})
        flag = {k: v for k, v in other._variables.items() if k == ROLLBACK_FLAG}
        texts = {ROLLBACK_FLAG: dict(other.texts_of(ROLLBACK_FLAG))}
        variables = {**self._variables, **flag}
        changed.record_sources(variables, self._shadowed, self._texts | texts)
        return changed

    def differences(self, other: Settings) -> dict[str, str]:
        """Variables that differ, as ``value here -> value in other``.

        Only hot ones may be shown to a person: none of those is secret.
        """
        changes = {}
        for name, field in VARIABLES.items():
            if field != "env_file":
                changes[name] = (getattr(self, field), getattr(other, field))
        for key in sorted({*self.agents, *other.agents}):
            ours, theirs = self.for_agent(key), other.for_agent(key)
            if ours != theirs:  # most do not differ, and there may be 1,000
                for field in AgentSettings.model_fields:
                    values = getattr(ours, field), getattr(theirs, field)
                    changes[f"{AGENTS_PREFIX}{key}__{field}".upper()] = values
        return {
            name: " -> ".join(display(name, value) or "(empty)" for value in values)
            for name, values in changes.items()
            if values[0] != values[1]
        }


def variable_name(field: str) -> str:
    """Name of the variable of *field*, an attribute of `Settings`.

    Raises:
        KeyError: *field* is not a setting.
    """
    if field not in Settings.model_fields:
        raise KeyError(f"{field!r} is not a setting; settings: {', '.join(Settings.model_fields)}")
    alias = Settings.model_fields[field].validation_alias
    return alias.upper() if isinstance(alias, str) else f"{_PREFIX}{field.upper()}"


_PREFIX = Settings.model_config["env_prefix"]
_HOT_OF_AGENT = hot_fields(AgentSettings)
VARIABLES = {variable_name(name): name for name in Settings.model_fields if name != "agents"}


def display(name: str, value: object) -> str:
    """*value* of the variable *name* as one line of text, without credentials."""
    text = "" if value is None else str(value)
    if name == variable_name("database_url"):  # a password may contain a question mark
        return visible(without_userinfo(text).partition("?")[0])
    if name == variable_name("api_token"):
        return HIDDEN if text else ""
    if isinstance(value, bool):
        return text.lower()
    return shown(name.partition("__SETTINGS__")[2], "" if value is None else value)

"""The daemon's own health: is it there, does it come round, can it write, what does it cost."""

from deploy.grafana.panels import BLUE, GREEN, RED, Lines, Number, Query, Timeline

GOOD = {0: ("no", RED), 1: ("yes", GREEN)}

PANELS = (
    Number(
        title="Version",
        why="Of genesis-fp16 and of Python.",
        queries=[
            Query(expr="genesis_build_info", legend="{{version}}, Python {{python}}"),
        ],
        span=6,
        steps={None: BLUE},
        name_only=True,
    ),
    Number(
        title="Up for",
        why="Since the daemon's process began.",
        queries=[
            Query(
                expr='time() - process_start_time_seconds{job="genesis-fp16"}',
                legend="{{instance}}",
            )
        ],
        unit="s",
        span=6,
        steps={None: GREEN},
    ),
    Number(
        title="Loop came round",
        why="Time since; it does so five times a second. Above 30 s GenesisLoopStalled fires.",
        queries=[
            Query(expr="time() - genesis_loop_last_tick_timestamp_seconds", legend="{{instance}}")
        ],
        unit="s",
        span=6,
        steps={None: GREEN, 30: RED},
    ),
    Number(
        title="Disk free",
        why="Share of the file system under GENESIS_HOME.",
        queries=[
            Query(expr="genesis_home_free_bytes / genesis_home_size_bytes", legend="{{instance}}")
        ],
        unit="percentunit",
        span=6,
        steps={None: RED, 0.1: GREEN},
    ),
    Timeline(
        title="All well?",
        why="It answers, holds the lock, its database works, the last edit of its settings was "
        "good.",
        queries=[
            Query(expr='up{job="genesis-fp16"}', legend="answers"),
            Query(expr="genesis_leader", legend="leads"),
            Query(expr="genesis_store_up", legend="database works"),
            Query(expr="genesis_config_reload_success", legend="settings are good"),
        ],
        states=GOOD,
    ),
    Timeline(
        title="Plugins",
        why="no: quarantined, see genesis-fp16 agents.",
        queries=[Query(expr="genesis_plugin_up", legend="{{agent}}")],
        states=GOOD,
    ),
    Lines(
        title="Slots and queue",
        why="Runs that wait while a slot is free should not be.",
        queries=[
            Query(expr="genesis_slots", legend="slots {{state}}"),
            Query(expr="genesis_queue_depth", legend="runs waiting"),
        ],
    ),
    Lines(
        title="Edits of the settings",
        why="Applied, or refused with the old ones staying in force.",
        queries=[
            Query(
                expr="round(increase(genesis_config_reloads_total[$__rate_interval])) > 0",
                legend="{{result}}",
            )
        ],
        bars=True,
    ),
    Lines(
        title="Until the next run",
        why="Until each agent is due; below 0 it is late.",
        queries=[
            Query(expr="genesis_schedule_next_fire_timestamp_seconds - time()", legend="{{agent}}")
        ],
        unit="s",
    ),
    Lines(
        title="Period of the schedules",
        why="Longest gap between the next fires of each agent's schedule.",
        queries=[Query(expr="genesis_schedule_period_seconds", legend="{{agent}}")],
        unit="s",
    ),
    Lines(
        title="Lag of the schedules",
        why="How late each agent's last due time was noticed.",
        queries=[Query(expr="genesis_schedule_lag_seconds", legend="{{agent}}")],
        unit="s",
    ),
    Lines(
        title="Rounds that failed",
        why="Rounds of the loop that ended in an unexpected error. Should be none.",
        queries=[
            Query(
                expr="increase(genesis_rounds_failed_total[$__rate_interval]) > 0",
                legend="{{instance}}",
            )
        ],
        nothing="None: every round went well",
        bars=True,
    ),
    Lines(
        title="Memory of the daemon",
        why="Resident. It imports no torch, so it should stay below 100 MB and level.",
        queries=[
            Query(expr='process_resident_memory_bytes{job="genesis-fp16"}', legend="{{instance}}")
        ],
        unit="bytes",
    ),
    Lines(
        title="CPU of the daemon",
        why="Share of one core; workers are processes of their own.",
        queries=[
            Query(
                expr='rate(process_cpu_seconds_total{job="genesis-fp16"}[$__rate_interval])',
                legend="{{instance}}",
            )
        ],
        unit="percentunit",
    ),
    Lines(
        title="Open files of the daemon",
        why="Should be level.",
        queries=[Query(expr='process_open_fds{job="genesis-fp16"}', legend="{{instance}}")],
    ),
    Lines(
        title="Disk space",
        why="Free under GENESIS_HOME.",
        queries=[Query(expr="genesis_home_free_bytes", legend="{{instance}}")],
        unit="bytes",
    ),
)

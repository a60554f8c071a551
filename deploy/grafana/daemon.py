"""The daemon's own health: process, loop, database, schedules, disk."""

from deploy.grafana.panels import BLUE, GREEN, RED, Lines, Number, Query, Timeline

GOOD = {0: ("no", RED), 1: ("yes", GREEN)}

PANELS = (
    Number(
        title="Version",
        why="Version of genesis-fp16 and of Python.",
        queries=[
            Query(expr="genesis_build_info", legend="{{version}}, Python {{python}}"),
        ],
        span=6,
        steps={None: BLUE},
        name_only=True,
    ),
    Number(
        title="Uptime",
        why="Time since the daemon's process started.",
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
        title="Time since the last loop tick",
        why="Time since the loop's last round; there are five a second. GenesisLoopStalled fires "
        "above 30 s.",
        queries=[
            Query(expr="time() - genesis_loop_last_tick_timestamp_seconds", legend="{{instance}}")
        ],
        unit="s",
        span=6,
        steps={None: GREEN, 30: RED},
    ),
    Number(
        title="Disk free",
        why="Free share of the file system of GENESIS_HOME.",
        queries=[
            Query(expr="genesis_home_free_bytes / genesis_home_size_bytes", legend="{{instance}}")
        ],
        unit="percentunit",
        span=6,
        steps={None: RED, 0.1: GREEN},
    ),
    Timeline(
        title="Health",
        why="Whether the daemon answers and holds the lock, its database works, and the last edit "
        "of the settings was applied.",
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
        why="no: the plugin is quarantined; see genesis-fp16 agents.",
        queries=[Query(expr="genesis_plugin_up", legend="{{agent}}")],
        states=GOOD,
    ),
    Lines(
        title="Slots and queue",
        why="No run should wait while a slot is free.",
        queries=[
            Query(expr="genesis_slots", legend="slots {{state}}"),
            Query(expr="genesis_queue_depth", legend="runs waiting"),
        ],
    ),
    Lines(
        title="Settings reloads",
        why="Edits applied, or refused: then the previous settings stay. Unknown names have "
        "our prefix, but are not settings.",
        queries=[
            Query(
                expr="round(increase(genesis_config_reloads_total[$__rate_interval])) > 0",
                legend="{{result}}",
            ),
            Query(expr="genesis_unknown_settings > 0", legend="unknown names"),
        ],
        bars=True,
    ),
    Lines(
        title="Until the next run",
        why="Time until each agent's next run; below 0 it is late.",
        queries=[
            Query(expr="genesis_schedule_next_fire_timestamp_seconds - time()", legend="{{agent}}")
        ],
        unit="s",
    ),
    Lines(
        title="Period of the schedules",
        why="Longest gap between the next scheduled runs of each agent.",
        queries=[Query(expr="genesis_schedule_period_seconds", legend="{{agent}}")],
        unit="s",
    ),
    Lines(
        title="Lag of the schedules",
        why="How late each agent's last scheduled run was noticed.",
        queries=[Query(expr="genesis_schedule_lag_seconds", legend="{{agent}}")],
        unit="s",
    ),
    Lines(
        title="Failed rounds and scrapes",
        why="Rounds of the loop, and scrapes, that ended in an unexpected error. There should be "
        "none.",
        queries=[
            Query(
                expr="increase(genesis_rounds_failed_total[$__rate_interval]) > 0",
                legend="rounds of {{instance}}",
            ),
            Query(
                expr="increase(genesis_scrapes_failed_total[$__rate_interval]) > 0",
                legend="scrapes of {{instance}}",
            ),
        ],
        nothing="None: every round and scrape succeeded",
        bars=True,
    ),
    Lines(
        title="Memory of the daemon",
        why="Resident memory. The daemon does not import torch, so it should stay constant, below "
        "100 MB.",
        queries=[
            Query(expr='process_resident_memory_bytes{job="genesis-fp16"}', legend="{{instance}}")
        ],
        unit="bytes",
    ),
    Lines(
        title="CPU of the daemon",
        why="Share of one core, without the workers.",
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
        why="Open files; their number should stay constant.",
        queries=[Query(expr='process_open_fds{job="genesis-fp16"}', legend="{{instance}}")],
    ),
    Lines(
        title="Disk space",
        why="Free space on the file system of GENESIS_HOME.",
        queries=[Query(expr="genesis_home_free_bytes", legend="{{instance}}")],
        unit="bytes",
    ),
)

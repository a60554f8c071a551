"""The life of the daemon's process: start, serve, reload, drain; HTTP, log and precision."""

"""Installed agents: discovery by metadata, the probe in a child process, loading in the worker."""

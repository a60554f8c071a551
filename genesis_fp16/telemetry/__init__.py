"""Exports what the daemon stores, shows and logs over OTLP, from a process of its own.

It has the extra ``otel``. `process` is its loop; `runs`, `scrape` and `log_lines` turn each source
into OpenTelemetry's form; `position` remembers how far each export has come.
"""

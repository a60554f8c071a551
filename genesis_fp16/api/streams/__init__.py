"""Server-sent events: what happens in a run, and which states change, as they do."""

from genesis_fp16.api.streams.run_events import follow_run, parse_place
from genesis_fp16.api.streams.server_sent import Streams
from genesis_fp16.api.streams.state_feed import StateFeed

__all__ = ["StateFeed", "Streams", "follow_run", "parse_place"]

"""Who may ask: host, origin, token or session, and the limits of a request."""

from genesis_fp16.api.access.caller import Caller, caller_of
from genesis_fp16.api.access.gate import Gate
from genesis_fp16.api.access.sessions import SESSION_COOKIE, Sessions

__all__ = ["SESSION_COOKIE", "Caller", "Gate", "Sessions", "caller_of"]

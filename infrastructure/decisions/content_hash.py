"""Hash of what a client has sent, which tells a repetition from an id that is used twice."""

from __future__ import annotations

import hashlib
import json


def content_hash(*parts: object) -> str:
    """Hash of JSON values in any order of their names; 32 hexadecimal digits."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
